// sampled_tiled: the sampled product on a CPU, one stored block at a time, its sums in registers.
//
// A block's elements are dot products of rows of C and rows of B. Both are packed: C's as rows with
// neighbouring terms next to each other, B's turned round, so that cpu_tiled's micro-kernels, which
// broadcast the one against vectors of the other, compute them. Packing reads either layout and
// widens half types. Terms: a chunk is as many terms as keep a strip (a few vectors of the block's
// columns) in L1; a span is some rows of a block. A thread takes ranges of stored blocks in order;
// it keeps the rows of C packed in its L2 while the block row lasts. B is packed once by all
// threads, a group of block columns at a time where all do not fit (`panel`), or for each block
// anew (`block`: little scratch). One thread computes an element, its terms in order.
#include "kernels/cpu/sampled/sampled_tiled.h"

#include <algorithm>
#include <string>

#include "kernels/cpu/microkernels/tiled_levels.h"
#include "kernels/cpu/shared/tiled_partition.h"
#include "operators/product/product.h"

namespace sparse_autotune::cpu_sampled {
namespace {

using cpu_tiled::Indices;
using cpu_tiled::kAvx2;
using cpu_tiled::kAvx512;
using cpu_tiled::Level;

class Sampling {
 public:
  Sampling(const Problem& p, const Launch& l, const Microkernels& kernels, const Cut& cut)
      : p_(p),
        l_(l),
        kernels_(kernels),
        panel_(cut.panel),
        s_(make_blocking(p, *l.device, kernels, cut)),
        crow_{l.crow_indices, p.index_type == IndexType::kInt64},
        columns_{l.col_indices, p.index_type == IndexType::kInt64},
        element_(size_of(p.dtype)),
        direct_(element_ == s_.acc_bytes && p.block_k % kernels.lanes == 0),
        packed_(static_cast<char*>(l.workspace)),
        slots_(packed_ + s_.packed_bytes) {}

  void run() const {
    const int64_t all = p_.k / p_.block_k, group = panel_ ? s_.group : all;
    for (int64_t first = 0; first < all; first += group) {
      const Columns columns{first, std::min(first + group, all)};
      if (panel_) pack_columns(columns);
      run_blocks(columns);
    }
  }

 private:
  struct Columns {
    int64_t begin, end;
  };
  // Terms [q0, q0 + depth) of one matrix of the batch; the index counts those before it.
  struct Chunk {
    int64_t index, batch, q0, depth;
  };
  struct Slot {
    char *tile, *left, *right;
  };

  template <typename Visit>
  void for_each_chunk(Visit&& visit) const {
    for (int64_t i = 0; i < p_.batch * s_.chunks; ++i) visit(chunk_at(i));
  }
  Chunk chunk_at(int64_t i) const {
    const int64_t q0 = i % s_.chunks * s_.depth;
    return {i, i / s_.chunks, q0, std::min(s_.depth, p_.n - q0)};
  }

  // All threads. Where the terms are B's lines in memory, a few of them through all columns at a
  // time: each line is read from end to end.
  void pack_columns(const Columns& columns) const {
    const int64_t step =
        p_.b_layout == Layout::kColMajor ? std::min(kPackedTerms, s_.depth) : s_.depth;
    const int64_t pieces = ceil_div(s_.depth, step), width = columns.end - columns.begin;
    const int64_t count = p_.batch * s_.chunks * pieces * width;
    parallel_each(l_.parallel, count, ceil_div(count, s_.slots), [&](int64_t i) {
      const int64_t column = i % width, piece = i / width;
      const Chunk chunk = chunk_at(piece / pieces);
      const int64_t first = piece % pieces * step;
      const int64_t terms = std::min(step, chunk.depth - first);
      if (terms <= 0) return;
      pack_right(columns.begin + column, chunk, first, terms, right_of(column, chunk));
    });
  }
  char* right_of(int64_t column_in_group, const Chunk& chunk) const {
    return packed_ + column_in_group * s_.column_bytes +
           chunk.index * s_.depth * s_.width * s_.acc_bytes;
  }

  void run_blocks(const Columns& columns) const {
    const int64_t units = p_.nnzb * s_.spans;
    const int64_t parts = std::min(std::max<int64_t>(units, 1), cpu_tiled::parts_of(s_.slots));
    cpu_tiled::for_each_part(l_.parallel, s_.slots, parts, [&](int64_t slot, int64_t part) {
      run_units(slot_at(slot), columns, cpu_tiled::part_begin(units, parts, part),
                cpu_tiled::part_begin(units, parts, part + 1));
    });
  }
  Slot slot_at(int64_t i) const {
    char* base = slots_ + i * s_.slot_bytes;
    return {base, base + s_.tile_bytes, base + s_.tile_bytes + s_.left_bytes};
  }

  // Units of a block row lie span by span, within a span block by block.
  void run_units(const Slot& slot, const Columns& columns, int64_t begin, int64_t end) const {
    int64_t row = row_of(begin / s_.spans), packed_row = -1, packed_span = -1;
    for (int64_t unit = begin; unit < end; ++unit) {
      while (crow_[row + 1] * s_.spans <= unit) ++row;
      const int64_t count = crow_[row + 1] - crow_[row], within = unit - crow_[row] * s_.spans;
      const int64_t span = within / count, block = crow_[row] + within % count;
      const int64_t column = columns_[block];
      if (column < columns.begin || column >= columns.end) continue;
      const int64_t r0 = span * s_.span_rows, rows = std::min(s_.span_rows, p_.block_m - r0);
      const int64_t first_row = row * p_.block_m + r0;
      if (s_.keeps_left && (row != packed_row || span != packed_span)) {
        for_each_chunk(
            [&](const Chunk& chunk) { pack_left(first_row, rows, chunk, left_of(slot, chunk)); });
        packed_row = row;
        packed_span = span;
      }
      char* const values =
          static_cast<char*>(l_.sampled) + (block * p_.block_m + r0) * p_.block_k * element_;
      run_block(slot, first_row, rows, column, columns.begin, values);
      if (!direct_) write(slot, values, rows);
    }
  }
  int64_t row_of(int64_t block) const {
    return cpu_tiled::row_at(p_.m / p_.block_m, block, [&](int64_t row) { return crow_[row]; });
  }
  char* left_of(const Slot& slot, const Chunk& chunk) const {
    return slot.left + (s_.keeps_left ? chunk.index * s_.span_rows * s_.depth * s_.acc_bytes : 0);
  }

  void run_block(const Slot& slot, int64_t first_row, int64_t rows, int64_t column,
                 int64_t first_column, char* values) const {
    for_each_chunk([&](const Chunk& chunk) {
      char* left = left_of(slot, chunk);
      if (!s_.keeps_left) pack_left(first_row, rows, chunk, left);
      const char* right = panel_ ? right_of(column - first_column, chunk) : slot.right;
      if (!panel_) pack_right(column, chunk, 0, chunk.depth, slot.right);
      multiply(slot, left, right, rows, chunk, values);
    });
  }

  // Rows of C: [row][term], a chunk's padded depth apart.
  void pack_left(int64_t first_row, int64_t rows, const Chunk& chunk, char* to) const {
    const bool row_major = p_.c_layout == Layout::kRowMajor;
    const int64_t at = chunk.batch * p_.c_batch_stride +
                       (row_major ? first_row * p_.ldc + chunk.q0 : chunk.q0 * p_.ldc + first_row);
    kernels_.pack({.b = static_cast<const char*>(l_.c) + at * element_,
                   .ldb = p_.ldc,
                   .layout = p_.c_layout,
                   .depth = rows,
                   .columns = chunk.depth,
                   .width = s_.depth,
                   .strip = to});
  }

  // Rows of B, the block's columns, some terms of a chunk: [strip][term][column].
  void pack_right(int64_t column, const Chunk& chunk, int64_t first, int64_t terms,
                  char* to) const {
    const bool row_major = p_.b_layout == Layout::kRowMajor;
    const int64_t q = chunk.q0 + first;
    for (int64_t c = 0; c < p_.block_k; c += s_.strip) {
      const int64_t k = column * p_.block_k + c;
      const int64_t at =
          chunk.batch * p_.b_batch_stride + (row_major ? k * p_.ldb + q : q * p_.ldb + k);
      // Terms are its rows.
      kernels_.pack({.b = static_cast<const char*>(l_.b) + at * element_,
                     .ldb = p_.ldb,
                     .layout = row_major ? Layout::kColMajor : Layout::kRowMajor,
                     .depth = terms,
                     .columns = std::min(s_.strip, p_.block_k - c),
                     .width = s_.strip,
                     .strip = to + (c * s_.depth + first * s_.strip) * s_.acc_bytes});
    }
  }

  void multiply(const Slot& slot, const char* left, const char* right, int64_t rows,
                const Chunk& chunk, char* values) const {
    static constexpr double kZeros[16] = {};  // of either accumulator
    cpu_tiled::MultiplyTask task{};
    task.row_stride = s_.depth;
    task.count = 1;
    task.depth = chunk.depth;
    task.b_row_stride = s_.strip;
    task.bias = kZeros;
    task.out_stride = task.init_stride = direct_ ? p_.block_k : s_.strip;
    task.output = direct_ ? cpu_tiled::Output::kResult : cpu_tiled::Output::kScratch;
    for (int64_t c = 0; c < p_.block_k; c += s_.strip) {
      task.b = right + c * s_.depth * s_.acc_bytes;
      task.vectors = static_cast<int>(ceil_div(std::min(s_.strip, p_.block_k - c), kernels_.lanes));
      const int64_t tiles = ceil_div(rows, kernels_.rows_of(task.vectors));
      char* const tile =
          direct_ ? values + c * element_ : slot.tile + c * s_.span_rows * s_.acc_bytes;
      for (int64_t i = 0; i < tiles; ++i) {  // of nearly equal height
        const int64_t r = rows * i / tiles;
        task.rows = static_cast<int>(rows * (i + 1) / tiles - r);
        task.values = left + r * s_.depth * s_.acc_bytes;
        // Never an address where nothing lies: each fetch of one would walk the page tables.
        task.next_values =
            i + 1 < tiles ? left + (r + task.rows) * s_.depth * s_.acc_bytes : task.values;
        task.out = tile + r * task.out_stride * s_.acc_bytes;
        task.init = chunk.index == 0 ? nullptr : task.out;
        kernels_.multiply(task);
      }
    }
  }

  void write(const Slot& slot, char* values, int64_t rows) const {
    for (int64_t c = 0; c < p_.block_k; c += s_.strip) {
      kernels_.store({.tile = slot.tile + c * s_.span_rows * s_.acc_bytes,
                      .tile_stride = s_.strip,
                      .rows = rows,
                      .columns = std::min(s_.strip, p_.block_k - c),
                      .c = values + c * element_,
                      .ldc = p_.block_k,
                      .layout = Layout::kRowMajor});
    }
  }

  const Problem& p_;
  const Launch& l_;
  const Microkernels& kernels_;
  const bool panel_;
  const Blocking s_;
  const Indices crow_, columns_;
  const int64_t element_;
  const bool direct_;  // sums are stored as they are added up, in whole vectors
  char* const packed_;
  char* const slots_;
};

class SampledTiled final : public Variant {
 public:
  SampledTiled(std::string_view name, const Level& level, const Cut& cut)
      : Variant(DeviceType::kCpu, name, Op::kSampled), level_(level), cut_(cut) {}

  Support supports(const Problem& p, const Device& d) const override {
    if (Support s = level_.runs_on(d); !s) return s;
    const Microkernels* kernels = level_.kernels(p.dtype);
    if (kernels == nullptr) return Support::no("the level has no code for this dtype");
    if (cut_.panel && make_blocking(p, d, *kernels, cut_).column_bytes > kRightBytes) {
      return Support::no("the sums are too long to pack a block column of B within " +
                         std::to_string(kRightBytes >> 20) + " MiB");
    }
    return Support::yes();
  }

  double estimate_us(const Problem& p, const Device& d) const override {
    const Microkernels& kernels = *level_.kernels(p.dtype);
    // Blocks narrower than a vector leave lanes idle; packing a block pays for its other side.
    const auto m = static_cast<double>(p.block_m), k = static_cast<double>(p.block_k);
    const double used = k / static_cast<double>(round_up(p.block_k, kernels.lanes));
    const double packing = 4.0 / k + (cut_.panel ? 0 : 8.0 / m);
    return roofline_us(nnz_flops(p) / used * (1 + packing),
                       0.7 * fma_tflops(p, d) * level_.width(d), 2 * compulsory_bytes(p),
                       d.memory_gbps, 5.0);
  }

  int64_t workspace_bytes(const Problem& p, const Device& d) const override {
    const Blocking s = make_blocking(p, d, *level_.kernels(p.dtype), cut_);
    return s.packed_bytes + s.slots * s.slot_bytes;
  }

  Status launch(const Problem& p, const Launch& l) const override {
    Sampling(p, l, *level_.kernels(p.dtype), cut_).run();
    return Status::ok();
  }

 private:
  const Level& level_;
  Cut cut_;
  Registration registration_{*this};
};

constexpr Cut kPanel{true, 128};
constexpr Cut kBlock{false, 128};

const SampledTiled kVariants[] = {
    {"sampled_tiled/avx2_panel", kAvx2, kPanel},
    {"sampled_tiled/avx2_block", kAvx2, kBlock},
    {"sampled_tiled/avx512_panel", kAvx512, kPanel},
    {"sampled_tiled/avx512_block", kAvx512, kBlock},
};

}  // namespace
}  // namespace sparse_autotune::cpu_sampled
