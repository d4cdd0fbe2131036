// cpu_rows: C = A * B on a CPU for small blocks and few columns, bound by reading A once.
//
// One thread owns whole block rows and keeps their sums in registers while it walks their blocks.
// One column (`matmul` with a vector; few columns of a column-major B, one at a time): lanes lie
// along a block's elements as they are stored, so A is read in whole vectors whatever its blocks
// are; each lane's element of B is picked from the block's own by a permutation, or gathered where
// a vector holds several blocks. More columns: lanes along them, each element of A broadcast. B is
// copied (turned) first where its layout is not the one that the form reads.
// Threads take parts of equal length, in stored blocks; a row that is long beside them is cut into
// segments whose sums are added up in order behind the walk. Where it is cut depends on the pattern
// alone, so results do not depend on the number of threads.
// A^T is read in place: its blocks in their own order, the lanes' elements of B picked accordingly.
// Half types: rows_halves.h.
#include <algorithm>

#include "kernels/cpu/microkernels/rows.h"
#include "kernels/cpu/microkernels/tiled_levels.h"
#include "kernels/cpu/product/rows_halves.h"
#include "kernels/cpu/shared/epilogue.h"
#include "kernels/cpu/shared/tiled_blocking.h"
#include "kernels/cpu/shared/tiled_partition.h"

namespace sparse_autotune::cpu_rows {
namespace {

using cpu_tiled::count_slots;
using cpu_tiled::Indices;
using cpu_tiled::round_up;

// Columns of a column-major B that are multiplied one at a time.
constexpr int64_t kFewColumns = 4;
// Long rows are cut into segments of so many elements of A, but A into no more than kSegments.
constexpr int64_t kSegmentElements = 32 << 10;
constexpr int64_t kSegments = 512;
constexpr int64_t kSegmentsBytes = 64 << 20;  // that their sums may take

struct Shape {
  bool vectors;          // the form for one column
  int64_t copied_bytes;  // of B
  int64_t segment;       // blocks; 0: no row is cut
  int64_t sums_bytes;    // of the segments
};

// A pure function of the problem, so that workspace_bytes() and launch() agree.
Shape shape_of(const Problem& p) {
  Shape s{};
  const bool column_major = p.b_layout == Layout::kColMajor;
  // Into the rows of C, sums of one column after another would be written one by one.
  const bool columns = column_major && p.c_layout == Layout::kColMajor;
  s.vectors = p.n == 1 || (columns && p.n <= kFewColumns);
  const bool in_place = s.vectors ? column_major || p.ldb == 1 : !column_major;
  if (!in_place) s.copied_bytes = round_up(p.batch * p.k * p.n * size_of(p.dtype), 256);
  const int64_t segment =
      std::max(ceil_div(kSegmentElements, p.block_m * p.block_k), ceil_div(p.nnzb, kSegments));
  const int64_t bytes = 2 * (p.nnzb / segment + 1) * p.batch * p.block_m * p.n * size_of(p.dtype);
  if (p.longest_row > segment && bytes <= kSegmentsBytes) {
    s.segment = segment;
    s.sums_bytes = bytes;
  }
  return s;
}

template <typename T>
void activate_sums(void* data, int64_t count, Activation activation) {
  activate_all(static_cast<T*>(data), count, activation);
}

template <typename T>
class Product {
 public:
  Product(const Problem& p, const Launch& l, const RowKernels& kernels)
      : p_(p),
        l_(l),
        s_(shape_of(p)),
        multiply_(s_.vectors ? kernels.vectors : kernels.columns),
        crow_{l.crow_indices, p.index_type == IndexType::kInt64},
        rows_(p.m / p.block_m),
        b_(static_cast<const T*>(l.b)),
        b_stride_(p.b_batch_stride),
        copy_(static_cast<T*>(l.workspace)),
        sums_(reinterpret_cast<T*>(static_cast<char*>(l.workspace) + s_.copied_bytes)) {
    const bool row_major = p.c_layout == Layout::kRowMajor;
    task_.values = l.values;
    task_.columns = l.col_indices;
    task_.positions = l.positions;
    task_.wide = crow_.wide;
    task_.nnzb = p.nnzb;
    task_.block_m = p.block_m;
    task_.block_k = p.block_k;
    task_.row_stride = row_stride_in_block(p);
    task_.k_stride = k_stride_in_block(p);
    task_.ldb = p.ldb;
    task_.n = p.n;
    task_.out_row = row_major ? p.ldc : 1;
    task_.out_column = row_major ? 1 : p.ldc;
    if (p.activation != Activation::kNone) task_.activate = activate_sums<T>;
    task_.activation = p.activation;
  }

  void run() {
    const int64_t slots = count_slots(p_, *l_.device);
    if (s_.copied_bytes > 0) copy(slots);
    const int64_t parts = cpu_tiled::parts_of(slots);
    cpu_tiled::for_each_part(l_.parallel, slots, parts * p_.batch,
                             [&](int64_t, int64_t i) { run_part(i / parts, i % parts, parts); });
    if (s_.segment > 0) add_segments();
  }

 private:
  int64_t start(int64_t row) const { return crow_[row] + row; }
  bool is_cut(int64_t row) const { return s_.segment > 0 && length(row) > s_.segment; }
  int64_t length(int64_t row) const { return crow_[row + 1] - crow_[row]; }

  void copy(int64_t slots) {
    const int64_t b_row = p_.b_layout == Layout::kRowMajor ? p_.ldb : 1;
    const int64_t b_column = p_.b_layout == Layout::kRowMajor ? 1 : p_.ldb;
    const T* const from = b_;
    parallel_each(l_.parallel, p_.batch * p_.k, ceil_div(p_.batch * p_.k, slots), [&](int64_t i) {
      const T* row = from + i / p_.k * p_.b_batch_stride + i % p_.k * b_row;
      for (int64_t c = 0; c < p_.n; ++c) copy_[i * p_.n + c] = row[c * b_column];
    });
    b_ = copy_;
    b_stride_ = p_.k * p_.n;
    task_.ldb = p_.n;
  }

  // The first row that starts at or behind `at` on a line on which a row is as long as its blocks
  // are many, plus one.
  int64_t first_row(int64_t at) const {
    if (rows_ == 0) return 0;
    const int64_t row = cpu_tiled::row_at(rows_, at, [&](int64_t r) { return start(r); });
    return row + (start(row) < at ? 1 : 0);
  }

  void run_part(int64_t batch, int64_t part, int64_t parts) const {
    const int64_t line = crow_[rows_] + rows_;
    const int64_t begin = cpu_tiled::part_begin(line, parts, part);
    const int64_t end = cpu_tiled::part_begin(line, parts, part + 1);
    int64_t row = first_row(begin);
    if (s_.segment == 0) return multiply(batch, row, part + 1 == parts ? rows_ : first_row(end));
    if (row > 0 && is_cut(row - 1)) multiply_segments(batch, row - 1, begin, end);
    for (int64_t first = row; row < rows_ && start(row) < end; first = row) {
      while (row < rows_ && start(row) < end && !is_cut(row)) ++row;
      multiply(batch, first, row);
      if (row == rows_ || start(row) >= end) return;
      multiply_segments(batch, row++, begin, end);
    }
  }

  RowsTask task_of(int64_t batch, int64_t row) const {
    RowsTask task = task_;
    task.crow = crow_.from(row);
    task.wide_crow = crow_.wide;
    task.b = b_ + batch * b_stride_;
    if (p_.has_bias) task.bias = static_cast<const T*>(l_.bias) + row * p_.block_m;
    task.out = static_cast<T*>(l_.c) + batch * p_.c_batch_stride + row * p_.block_m * task_.out_row;
    return task;
  }

  void multiply(int64_t batch, int64_t first, int64_t last) const {
    if (first >= last) return;
    RowsTask task = task_of(batch, first);
    task.rows = last - first;
    multiply_(task);
  }

  // The sums of the segment that begins at a block: two segments at most of rows that are cut begin
  // between multiples of `segment`, one of them with its row.
  T* sums_at(int64_t batch, int64_t block, bool first) const {
    const int64_t slot =
        2 * (batch * (p_.nnzb / s_.segment + 1) + block / s_.segment) + (first ? 1 : 0);
    return sums_ + slot * p_.block_m * p_.n;
  }

  // Calls visit(begin, end) for each segment of a row.
  template <typename Visit>
  void for_each_segment(int64_t row, Visit&& visit) const {
    const int64_t last = crow_[row + 1];
    for (int64_t begin = crow_[row]; begin < last;) {
      const int64_t end = std::min((begin / s_.segment + 1) * s_.segment, last);
      visit(begin, end);
      begin = end;
    }
  }

  // The segments of a row that start on a part of the line.
  void multiply_segments(int64_t batch, int64_t row, int64_t begin, int64_t end) const {
    for_each_segment(row, [&](int64_t first, int64_t last) {
      if (first + row < begin || first + row >= end) return;
      const int64_t bounds[2] = {first, last};
      RowsTask task = task_of(batch, row);
      task.crow = bounds;
      task.wide_crow = true;
      task.rows = 1;
      task.bias = nullptr;
      task.activate = nullptr;
      task.out = sums_at(batch, first, first == crow_[row]);
      task.out_row = p_.n;
      task.out_column = 1;
      multiply_(task);
    });
  }

  void add_segments() const {
    for (int64_t at = s_.segment; at < p_.nnzb; at += s_.segment) {
      const int64_t row = cpu_tiled::row_at(rows_, at, [&](int64_t r) { return crow_[r]; });
      // The first multiple of `segment` inside the row.
      if (!is_cut(row) || at / s_.segment != crow_[row] / s_.segment + 1) continue;
      for (int64_t batch = 0; batch < p_.batch; ++batch) add_segments_of(batch, row);
    }
  }

  void add_segments_of(int64_t batch, int64_t row) const {
    const RowsTask task = task_of(batch, row);
    T* const total = sums_at(batch, crow_[row], true);
    const int64_t count = p_.block_m * p_.n;
    for_each_segment(row, [&](int64_t begin, int64_t) {
      if (begin == crow_[row]) return;
      const T* const part = sums_at(batch, begin, false);
      for (int64_t i = 0; i < count; ++i) total[i] += part[i];
    });
    for (int64_t r = 0; r < p_.block_m; ++r) {
      const T bias = task.bias == nullptr ? T(0) : static_cast<const T*>(task.bias)[r];
      T* const row = total + r * p_.n;
      for (int64_t c = 0; c < p_.n; ++c) row[c] += bias;
      activate_all(row, p_.n, p_.activation);
      T* const out = static_cast<T*>(task.out) + r * task.out_row;
      for (int64_t c = 0; c < p_.n; ++c) out[c * task.out_column] = row[c];
    }
  }

  const Problem& p_;
  const Launch& l_;
  const Shape s_;
  void (*const multiply_)(const RowsTask&);
  const Indices crow_;
  const int64_t rows_;
  const T* b_;
  int64_t b_stride_;
  T* const copy_;
  T* const sums_;
  RowsTask task_{};
};

class Rows final : public Variant {
 public:
  Rows(std::string_view name, const cpu_tiled::Level& level, const RowKernels* (*kernels)(DType))
      : Variant(DeviceType::kCpu, name), level_(level), kernels_(kernels) {}

  Support supports(const Problem& p, const Device& d) const override {
    if (Support s = level_.runs_on(d); !s) return s;
    if (p.k > INT32_MAX) return Support::no("k does not fit into 31 bits");
    return Support::yes();
  }

  double estimate_us(const Problem& p, const Device& d) const override {
    const double share =
        shape_of(p).vectors ? 0.15 : 0.35 * cpu_tiled::lanes_used(p, kernels_of(p).lanes);
    const double widened = is_half(p.dtype) ? values_bytes(p) : 0;
    return roofline_us(nnz_flops(p), fma_tflops(p, d) * share * level_.width(d),
                       compulsory_bytes(p) + widened, d.memory_gbps, 3.0);
  }

  int64_t workspace_bytes(const Problem& p, const Device& d) const override {
    if (is_half(p.dtype)) {
      const HalvesShape s = halves_shape(p);
      return s.b_bytes + s.bias_bytes + count_slots(p, d) * s.slot_bytes;
    }
    const Shape s = shape_of(p);
    return s.copied_bytes + s.sums_bytes;
  }

  Status launch(const Problem& p, const Launch& l) const override {
    const RowKernels& kernels = kernels_of(p);
    if (is_half(p.dtype)) {
      HalvesProduct(p, l, halves_shape(p), kernels, *level_.kernels(p.dtype)).run();
    } else if (p.dtype == DType::kFloat64) {
      Product<double>(p, l, kernels).run();
    } else {
      Product<float>(p, l, kernels).run();
    }
    return Status::ok();
  }

 private:
  const RowKernels& kernels_of(const Problem& p) const {
    return *kernels_(is_half(p.dtype) ? DType::kFloat32 : p.dtype);
  }
  HalvesShape halves_shape(const Problem& p) const {
    return halves_shape_of(p, shape_of(p).vectors, kernels_of(p).lanes);
  }

  const cpu_tiled::Level& level_;
  const RowKernels* (*kernels_)(DType);
  Registration registration_{*this};
};

const Rows kVariants[] = {
    {"cpu_rows/avx2", cpu_tiled::kAvx2, avx2_row_kernels},
    {"cpu_rows/avx512", cpu_tiled::kAvx512, avx512_row_kernels},
};

}  // namespace
}  // namespace sparse_autotune::cpu_rows
