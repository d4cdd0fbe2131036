// sampled_turned: the sampled product on a CPU with cpu_turned's micro-kernel, one stored block at
// a time, each of its sums in a register from the first term to the last.
//
// A block is (rows of C) x (rows of B)^T. Both are packed term by term: B as strips of two vectors
// of a block's columns, C as tiles of up to 14 rows (6 with AVX2), which are broadcast. What is
// packed so is how operands lie in memory where their terms are rows (a layer's gradient: terms are
// tokens); the other layout is turned on the way. All threads pack, a group of block rows and of
// block columns at a time where not all fit; then they take parts of the stored blocks. Terms are
// padded with zeros to whole multiples of kDepth: what a tile reads of the next is fetched while
// it multiplies this one. One thread computes an element, its terms in order.
#include <algorithm>
#include <cstring>
#include <string>

#include "kernels/cpu/microkernels/tiled_levels.h"
#include "kernels/cpu/shared/tiled_blocking.h"
#include "kernels/cpu/shared/tiled_partition.h"

namespace sparse_autotune::cpu_sampled_turned {
namespace {

using cpu_tiled::Indices;
using cpu_tiled::kAvx2;
using cpu_tiled::kAvx512;
using cpu_tiled::kLineBytes;
using cpu_tiled::Level;
using cpu_tiled::Microkernels;
using cpu_tiled::Partition;
using cpu_tiled::round_up;

constexpr int64_t kDepth = 32;
// Below glibc's largest mmap threshold (32 MB): mapped once, not page by page in every launch.
constexpr int64_t kPackedBytes = 24 << 20;
constexpr int64_t kPackedTerms = 16;  // through all columns at a time: lines are read to their end

// One operand, packed: pieces of a few rows of a block of it, [term][width] each.
struct Side {
  int64_t block;   // rows of a block
  int64_t pieces;  // of a block
  int64_t widest;  // piece
  bool padded;     // all pieces are as wide, their last columns unused; else as wide as their rows
  int64_t piece_bytes;
  int64_t group;  // blocks packed at a time

  // Rows of nearly equal number where pieces are padded, else whole vectors.
  int64_t first(int64_t piece) const {
    return padded ? block * piece / pieces : std::min(piece * widest, block);
  }
  int64_t rows(int64_t piece) const { return first(piece + 1) - first(piece); }
  int64_t width(int64_t piece) const { return padded ? widest : rows(piece); }
  int64_t block_bytes() const { return pieces * piece_bytes; }
  int64_t bytes() const { return round_up(group * block_bytes(), 256); }
};

// Sizes of one launch: a pure function of problem and level, so that workspace_bytes() and launch()
// agree.
struct Blocking {
  int64_t terms, padded_terms;
  Side c, b;
  int64_t slots;
};

Blocking make_blocking(const Problem& p, const Device& d, const Microkernels& kernels) {
  Blocking s{};
  s.terms = sampled_length(p);
  s.padded_terms = round_up(std::max<int64_t>(s.terms, 1), kDepth);
  const auto side = [&](int64_t block, int64_t rows, int64_t widest, bool padded, int64_t blocks) {
    Side x{block, ceil_div(block, rows), widest, padded, 0, 0};
    // A line more than a power of two apart: neighbours map to other cache sets.
    x.piece_bytes = s.padded_terms * widest * size_of(p.dtype) + kLineBytes;
    x.group = std::clamp<int64_t>(kPackedBytes / x.block_bytes(), 1, std::max<int64_t>(blocks, 1));
    return x;
  };
  s.c = side(p.block_m, kernels.turned_rows,
             cpu_tiled::turned_width(static_cast<int>(kernels.turned_rows),
                                     static_cast<int>(kernels.lanes)),
             true, p.m / p.block_m);
  const int64_t strip = cpu_tiled::kTurnedVectors * kernels.lanes;
  s.b = side(p.block_k, strip, strip, false, p.k / p.block_k);
  s.slots = cpu_tiled::count_slots(p, d);
  return s;
}

class Sampling {
 public:
  Sampling(const Problem& p, const Launch& l, const Microkernels& kernels)
      : p_(p),
        l_(l),
        kernels_(kernels),
        s_(make_blocking(p, *l.device, kernels)),
        crow_{l.crow_indices, p.index_type == IndexType::kInt64},
        columns_{l.col_indices, p.index_type == IndexType::kInt64},
        element_(size_of(p.dtype)),
        packed_c_(static_cast<char*>(l.workspace)),
        packed_b_(packed_c_ + s_.c.bytes()) {}

  void run() const {
    const int64_t rows = p_.m / p_.block_m, columns = p_.k / p_.block_k;
    for (int64_t row = 0; row < rows; row += s_.c.group) {
      const Range some_rows{row, std::min(row + s_.c.group, rows)};
      pack_blocks(s_.c, l_.c, p_.c_layout, p_.ldc, p_.c_batch_stride, some_rows, packed_c_);
      for (int64_t column = 0; column < columns; column += s_.b.group) {
        const Range some_columns{column, std::min(column + s_.b.group, columns)};
        if (row == 0 || s_.b.group < columns) {
          pack_blocks(s_.b, l_.b, p_.b_layout, p_.ldb, p_.b_batch_stride, some_columns, packed_b_);
        }
        multiply(some_rows, some_columns);
      }
    }
  }

 private:
  struct Range {
    int64_t begin, end;
  };

  // A few terms through all blocks at a time: lines of an operand whose terms are lines are read
  // from end to end.
  void pack_blocks(const Side& side, const void* from, Layout layout, int64_t ld,
                   int64_t batch_stride, const Range& blocks, char* to) const {
    const bool terms_are_lines = layout == Layout::kColMajor;
    const int64_t steps = ceil_div(p_.n, kPackedTerms), count = steps * p_.batch;
    parallel_for(l_.parallel, 0, count, ceil_div(count, s_.slots), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t batch = i / steps, first = i % steps * kPackedTerms;
        const int64_t term = batch * p_.n + first;
        cpu_tiled::PackTask task{};
        task.ldb = ld;
        task.layout =
            terms_are_lines ? Layout::kRowMajor : Layout::kColMajor;  // terms are its rows
        task.depth = std::min(kPackedTerms, p_.n - first);
        for (int64_t block = blocks.begin; block < blocks.end; ++block) {
          for (int64_t piece = 0; piece < side.pieces; ++piece) {
            const int64_t row = block * side.block + side.first(piece);
            const int64_t at =
                batch * batch_stride + (terms_are_lines ? first * ld + row : row * ld + first);
            char* const packed =
                to + (block - blocks.begin) * side.block_bytes() + piece * side.piece_bytes;
            task.b = static_cast<const char*>(from) + at * element_;
            task.columns = side.rows(piece);
            task.width = side.width(piece);
            task.strip = packed + term * task.width * element_;
            kernels_.pack(task);
            if (term + task.depth < s_.terms) continue;
            std::memset(packed + s_.terms * task.width * element_, 0,
                        static_cast<size_t>((s_.padded_terms - s_.terms) * task.width * element_));
          }
        }
      }
    });
  }

  void multiply(const Range& rows, const Range& columns) const {
    const int64_t parts = cpu_tiled::parts_of(s_.slots);
    const Partition partition(crow_, p_.m / p_.block_m, 1, 1, parts);
    cpu_tiled::for_each_part(l_.parallel, s_.slots, parts, [&](int64_t, int64_t part) {
      partition.for_each_unit(part, [&](int64_t, int64_t row, int64_t) {
        if (row >= rows.begin && row < rows.end) multiply_row(rows, columns, row);
      });
    });
  }

  // At or behind the column.
  int64_t first_block(int64_t row, int64_t column) const {
    int64_t low = crow_[row], high = crow_[row + 1];
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      (columns_[middle] < column ? low : high) = middle + (columns_[middle] < column ? 1 : 0);
    }
    return low;
  }

  void multiply_row(const Range& rows, const Range& columns, int64_t row) const {
    const int64_t first = first_block(row, columns.begin), last = first_block(row, columns.end);
    const char* const tiles = packed_c_ + (row - rows.begin) * s_.c.block_bytes();
    cpu_tiled::TurnedTask task{};
    task.count = s_.padded_terms / kDepth;
    task.depth = kDepth;
    task.out_stride = p_.block_k;
    for (int64_t block = first; block < last; ++block) {
      for (int64_t strip = 0; strip < s_.b.pieces; ++strip) {
        task.values = packed_b_ + (columns_[block] - columns.begin) * s_.b.block_bytes() +
                      strip * s_.b.piece_bytes;
        task.next_values = task.values;
        task.block_stride = kDepth * s_.b.width(strip);
        task.vectors = static_cast<int>(s_.b.width(strip) / kernels_.lanes);
        for (int64_t tile = 0; tile < s_.c.pieces; ++tile) {
          const int64_t r = block * p_.block_m + s_.c.first(tile);
          task.rows = static_cast<int>(s_.c.rows(tile));
          task.b = tiles + tile * s_.c.piece_bytes;
          task.out =
              static_cast<char*>(l_.sampled) + (r * p_.block_k + s_.b.first(strip)) * element_;
          kernels_.turned(task);
        }
      }
    }
  }

  const Problem& p_;
  const Launch& l_;
  const Microkernels& kernels_;
  const Blocking s_;
  const Indices crow_, columns_;
  const int64_t element_;
  char* const packed_c_;
  char* const packed_b_;
};

class SampledTurned final : public Variant {
 public:
  SampledTurned(std::string_view name, const Level& level)
      : Variant(DeviceType::kCpu, name, Op::kSampled), level_(level) {}

  Support supports(const Problem& p, const Device& d) const override {
    if (Support s = level_.runs_on(d); !s) return s;
    const Microkernels* kernels = level_.kernels(p.dtype);
    if (kernels == nullptr || kernels->turned == nullptr) {
      return Support::no("half types are widened: sums are not stored as they are");
    }
    if (p.block_k % kernels->lanes != 0) {
      return Support::no("block_k is not a multiple of " + std::to_string(kernels->lanes));
    }
    const Blocking s = make_blocking(p, d, *kernels);
    if (std::max(s.c.block_bytes(), s.b.block_bytes()) > kPackedBytes) {
      return Support::no("the sums are too long to pack a block row or column within " +
                         std::to_string(kPackedBytes >> 20) + " MiB");
    }
    return Support::yes();
  }

  double estimate_us(const Problem& p, const Device& d) const override {
    const double packing = 1 + 4.0 / static_cast<double>(p.block_k);
    return roofline_us(nnz_flops(p) * packing, 0.75 * peak_tflops(p, d) * level_.width(d),
                       2 * compulsory_bytes(p), d.memory_gbps, 5.0);
  }

  int64_t workspace_bytes(const Problem& p, const Device& d) const override {
    const Blocking s = make_blocking(p, d, *level_.kernels(p.dtype));
    return s.c.bytes() + s.b.bytes();
  }

  Status launch(const Problem& p, const Launch& l) const override {
    Sampling(p, l, *level_.kernels(p.dtype)).run();
    return Status::ok();
  }

 private:
  const Level& level_;
  Registration registration_{*this};
};

const SampledTurned kVariants[] = {
    {"sampled_turned/avx2", kAvx2},
    {"sampled_turned/avx512", kAvx512},
};

}  // namespace
}  // namespace sparse_autotune::cpu_sampled_turned
