// sampled_dots: values = C * B^T at the stored blocks, for small blocks: lanes along the terms.
//
// Each element of a block is the dot product of a row of C and a row of B, a tile's (a few rows by
// a few columns of neighbouring blocks) stand in registers, a vector each, and are added up across
// their lanes together. Both operands are packed as rows of whole vectors: terms next to each
// other, half types widened. Terms: a chunk is so many terms of one matrix of the batch; a pass is
// as many chunks as keep B's rows in an L2. All threads pack a pass of B; then they take parts of
// the stored blocks and pack the rows of C that these need. One thread computes an element, its
// terms in the same order whatever the number of threads.
#include "kernels/cpu/sampled/sampled_dots.h"

#include <string>

#include "kernels/cpu/microkernels/tiled_levels.h"
#include "kernels/cpu/shared/tiled_blocking.h"
#include "kernels/cpu/shared/tiled_partition.h"
#include "operators/product/product.h"

namespace sparse_autotune::cpu_dots {
namespace {

using cpu_tiled::count_slots;
using cpu_tiled::Indices;
using cpu_tiled::Microkernels;
using cpu_tiled::round_up;

constexpr int64_t kFewestTerms = 64;   // of a pass: sums across lanes cost as much
constexpr int64_t kSums = 4096;        // of half types that are narrowed at a time
constexpr int64_t kLineElements = 32;  // rows of a column-major C packed at a time
constexpr int64_t kPackedRows = 64;    // of B, at a time

// Sizes of one launch: a pure function of the problem, so that workspace_bytes() and launch()
// agree.
struct Blocking {
  int64_t acc_bytes;
  int64_t depth, chunks;         // of a chunk; chunks of one matrix of the batch
  int64_t pass_chunks, passes;   // of a full pass
  int64_t c_rows;                // block rows of C packed at a time
  int64_t b_bytes, sums_bytes;   // of a pass of B; of all sums, where they wait for other passes
  int64_t c_bytes, chunk_bytes;  // a slot's
  int64_t slots, slot_bytes;
};

Blocking make_blocking(const Problem& p, const Device& d, int64_t lanes) {
  Blocking s{};
  s.acc_bytes = p.dtype == DType::kFloat64 ? 8 : 4;
  const int64_t n = std::max<int64_t>(p.n, 1), rows = std::max<int64_t>(p.k, 1);
  const int64_t cache = std::max<int64_t>(cpu_tiled::core_cache_bytes(), 1 << 20) / 2;
  const int64_t terms = std::max(cache / (rows * s.acc_bytes), kFewestTerms);
  s.depth = round_up(ceil_div(n, ceil_div(n, terms)), lanes);
  s.chunks = ceil_div(n, s.depth);
  const int64_t all = s.chunks * p.batch;
  s.passes = ceil_div(all, std::max<int64_t>(terms / s.depth, 1));
  s.pass_chunks = ceil_div(all, s.passes);
  s.passes = ceil_div(all, s.pass_chunks);
  s.c_rows = p.c_layout == Layout::kColMajor ? ceil_div(kLineElements, p.block_m) : 1;
  const int64_t row_bytes = s.pass_chunks * s.depth * s.acc_bytes;
  s.b_bytes = round_up(p.k * row_bytes, 256);
  const int64_t elements = p.block_m * p.block_k;
  if (is_half(p.dtype)) {
    if (s.passes > 1) {
      s.sums_bytes = round_up(p.nnzb * elements * s.acc_bytes, 256);
    } else {
      s.chunk_bytes = round_up(std::max(kSums, elements) * s.acc_bytes, 64);
    }
  }
  s.c_bytes = round_up(s.c_rows * p.block_m * row_bytes, 64);
  s.slots = count_slots(p, d);
  s.slot_bytes = round_up(s.c_bytes + s.chunk_bytes, 256) + 256;
  return s;
}

class Sampling {
 public:
  Sampling(const Problem& p, const Launch& l, const DotsKernels& kernels, const Microkernels& types)
      : p_(p),
        l_(l),
        kernels_(kernels),
        types_(types),
        s_(make_blocking(p, *l.device, kernels.lanes)),
        crow_{l.crow_indices, p.index_type == IndexType::kInt64},
        columns_{l.col_indices, crow_.wide},
        rows_(p.m / p.block_m),
        elements_(p.block_m * p.block_k),
        b_(static_cast<char*>(l.workspace)),
        sums_(b_ + s_.b_bytes),
        slots_(sums_ + s_.sums_bytes) {}

  void run() const {
    for (int64_t pass = 0; pass < s_.passes; ++pass) {
      pack_b(pass);
      run_blocks(pass);
    }
  }

 private:
  int64_t chunks_of(int64_t pass) const {
    return std::min(s_.pass_chunks, s_.chunks * p_.batch - pass * s_.pass_chunks);
  }

  // Rows [first, first + rows) of an operand, all chunks of a pass; a chunk's lie `stride` rows
  // apart from the next one's.
  void pack(int64_t pass, const void* from, Layout layout, int64_t ld, int64_t batch_stride,
            int64_t first, int64_t rows, char* to, int64_t stride) const {
    const bool row_major = layout == Layout::kRowMajor;
    for (int64_t i = 0; i < chunks_of(pass); ++i) {
      const int64_t chunk = pass * s_.pass_chunks + i, term = chunk % s_.chunks * s_.depth;
      const int64_t at =
          chunk / s_.chunks * batch_stride + (row_major ? first * ld + term : term * ld + first);
      types_.pack({.b = static_cast<const char*>(from) + at * size_of(p_.dtype),
                   .ldb = ld,
                   .layout = layout,
                   .depth = rows,
                   .columns = std::min(s_.depth, p_.n - term),
                   .width = s_.depth,
                   .strip = to + i * stride * s_.depth * s_.acc_bytes});
    }
  }

  void pack_b(int64_t pass) const {
    const int64_t groups = ceil_div(p_.k, kPackedRows);
    parallel_each(l_.parallel, groups, ceil_div(groups, s_.slots), [&](int64_t group) {
      const int64_t row = group * kPackedRows, rows = std::min(kPackedRows, p_.k - row);
      pack(pass, l_.b, p_.b_layout, p_.ldb, p_.b_batch_stride, row, rows,
           b_ + row * s_.depth * s_.acc_bytes, p_.k);
    });
  }

  void run_blocks(int64_t pass) const {
    const int64_t parts = cpu_tiled::parts_of(s_.slots);
    cpu_tiled::for_each_part(l_.parallel, s_.slots, parts, [&](int64_t slot, int64_t part) {
      run_part(pass, slots_ + slot * s_.slot_bytes, cpu_tiled::part_begin(p_.nnzb, parts, part),
               cpu_tiled::part_begin(p_.nnzb, parts, part + 1));
    });
  }

  void run_part(int64_t pass, char* slot, int64_t begin, int64_t end) const {
    if (begin == end) return;
    int64_t row = cpu_tiled::row_at(rows_, begin, [&](int64_t r) { return crow_[r]; });
    int64_t packed = -1;
    for (int64_t block = begin; block < end; ++row) {
      const int64_t last = std::min(crow_[row + 1], end);
      if (block == last) continue;
      if (packed < 0 || row >= packed + s_.c_rows) {
        packed = row;
        pack(pass, l_.c, p_.c_layout, p_.ldc, p_.c_batch_stride, row * p_.block_m,
             std::min(s_.c_rows, rows_ - row) * p_.block_m, slot, s_.c_rows * p_.block_m);
      }
      const char* const c = slot + (row - packed) * p_.block_m * s_.depth * s_.acc_bytes;
      multiply(pass, c, slot + s_.c_bytes, block, last);
      block = last;
    }
  }

  void multiply(int64_t pass, const void* c, char* chunk, int64_t begin, int64_t end) const {
    DotsTask task{.c = c,
                  .c_chunk = s_.c_rows * p_.block_m * s_.depth,
                  .b = b_,
                  .b_chunk = p_.k * s_.depth,
                  .chunks = chunks_of(pass),
                  .depth = s_.depth,
                  .columns = columns_,
                  .count = 0,
                  .block_m = p_.block_m,
                  .block_k = p_.block_k,
                  .sums = nullptr,
                  .add = pass > 0};
    const bool half = is_half(p_.dtype);
    const int64_t step = half ? std::max<int64_t>(kSums / elements_, 1) : end - begin;
    for (int64_t block = begin; block < end; block += step) {
      task.columns = columns_.from(block);
      task.count = std::min(step, end - block);
      task.sums = !half           ? static_cast<char*>(l_.sampled) + sum_bytes(block)
                  : s_.passes > 1 ? sums_ + sum_bytes(block)
                                  : chunk;
      kernels_.dots(task);
      if (half && pass + 1 == s_.passes) narrow(block, task.count, task.sums);
    }
  }
  int64_t sum_bytes(int64_t blocks) const { return blocks * elements_ * s_.acc_bytes; }

  void narrow(int64_t block, int64_t count, const void* sums) const {
    const int64_t columns = count * elements_;
    types_.store({.tile = sums,
                  .tile_stride = columns,
                  .rows = 1,
                  .columns = columns,
                  .c = static_cast<char*>(l_.sampled) + block * elements_ * size_of(p_.dtype),
                  .ldc = columns,
                  .layout = Layout::kRowMajor});
  }

  const Problem& p_;
  const Launch& l_;
  const DotsKernels& kernels_;
  const Microkernels& types_;
  const Blocking s_;
  const Indices crow_, columns_;
  const int64_t rows_, elements_;
  char* const b_;
  char* const sums_;
  char* const slots_;
};

class SampledDots final : public Variant {
 public:
  SampledDots(std::string_view name, const cpu_tiled::Level& level,
              const DotsKernels* (*kernels)(DType))
      : Variant(DeviceType::kCpu, name, Op::kSampled), level_(level), kernels_(kernels) {}

  Support supports(const Problem& p, const Device& d) const override {
    if (Support s = level_.runs_on(d); !s) return s;
    if (std::max(p.block_m, p.block_k) > kMostSide) {
      return Support::no("a side of the blocks is more than " + std::to_string(kMostSide));
    }
    return Support::yes();
  }

  double estimate_us(const Problem& p, const Device& d) const override {
    const Blocking s = make_blocking(p, d, kernels_(p.dtype)->lanes);
    const double used = static_cast<double>(p.n) / static_cast<double>(s.chunks * s.depth);
    // Few terms are as many sums across lanes, rows that no block shares as many loads.
    const double sums = 1 + 48.0 / static_cast<double>(s.depth);
    const double loads = p.block_m == 1 || p.block_k == 1 ? 2 : 1;
    return roofline_us(nnz_flops(p) / used * sums * loads, 0.6 * fma_tflops(p, d) * level_.width(d),
                       2 * compulsory_bytes(p), d.memory_gbps, 5.0);
  }

  int64_t workspace_bytes(const Problem& p, const Device& d) const override {
    const Blocking s = make_blocking(p, d, kernels_(p.dtype)->lanes);
    return s.b_bytes + s.sums_bytes + s.slots * s.slot_bytes;
  }

  Status launch(const Problem& p, const Launch& l) const override {
    Sampling(p, l, *kernels_(p.dtype), *level_.kernels(p.dtype)).run();
    return Status::ok();
  }

 private:
  const cpu_tiled::Level& level_;
  const DotsKernels* (*kernels_)(DType);
  Registration registration_{*this};
};

const SampledDots kVariants[] = {
    {"sampled_dots/avx2", cpu_tiled::kAvx2, avx2_dots_kernels},
    {"sampled_dots/avx512", cpu_tiled::kAvx512, avx512_dots_kernels},
};

}  // namespace
}  // namespace sparse_autotune::cpu_dots
