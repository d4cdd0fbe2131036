// The sizes that sampled_tiled cuts a product into; sampled_tiled.cpp explains the terms.
#pragma once

#include <algorithm>

#include "kernels/cpu/shared/tiled_blocking.h"
#include "operators/product/product.h"

namespace sparse_autotune::cpu_sampled {

using cpu_tiled::Microkernels;
using cpu_tiled::round_up;

inline constexpr int64_t kLeftBytes = 512 << 10;  // half of an L2 of 1 MB
// Below glibc's largest mmap threshold (32 MB): mapped once, not page by page in every launch.
inline constexpr int64_t kRightBytes = 24 << 20;
inline constexpr int64_t kPackedTerms = 16;  // of sums, packed through all columns at a time

// What a variant chooses.
struct Cut {
  bool panel;     // B is packed by all threads before, not block by block on the way
  int64_t depth;  // terms of a sum in a chunk
};

// Sizes of one launch: a pure function of problem, level and configuration, so that
// workspace_bytes() and launch() agree.
struct Blocking {
  int64_t acc_bytes;             // of an accumulator, and of an element of what is packed
  int64_t strip, strips, width;  // columns: of a strip; strips of a block, and their columns
  int64_t depth;                 // of a full chunk
  int64_t chunks;                // of one matrix of the batch
  int64_t padded_depth;          // of all chunks of the batch, each in whole vectors
  int64_t span_rows, spans;      // of a block
  bool keeps_left;               // a span's rows of C stay packed for all blocks of its row
  int64_t column_bytes;          // of one packed block column
  int64_t group;                 // block columns packed at a time
  int64_t slots;
  int64_t tile_bytes, left_bytes, right_bytes, slot_bytes;
  int64_t packed_bytes;
};

inline Blocking make_blocking(const Problem& p, const Device& d, const Microkernels& kernels,
                              const Cut& cut) {
  Blocking s{};
  s.acc_bytes = p.dtype == DType::kFloat64 ? 8 : 4;
  s.slots = cpu_tiled::count_slots(p, d);
  const int64_t vectors = ceil_div(p.block_k, kernels.lanes);
  s.strips = ceil_div(vectors, cpu_tiled::vectors_in_lines(kernels, s.acc_bytes));
  s.strip = ceil_div(vectors, s.strips) * kernels.lanes;
  s.width = s.strips * s.strip;
  // Questions are asked about empty products too.
  const int64_t n = std::max<int64_t>(p.n, 1);
  s.depth = std::min(cut.depth, round_up(n, kernels.lanes));
  s.chunks = ceil_div(n, s.depth);
  s.padded_depth = p.batch * s.chunks * s.depth;
  const int64_t row_bytes = s.padded_depth * s.acc_bytes;
  const int64_t rows = std::min(p.block_m, cpu_tiled::kSpanRows);
  // Fewer rows a span rather than packing C anew for each block, down to one full tile.
  const int64_t fitting = std::min(rows, kLeftBytes / row_bytes / kernels.rows * kernels.rows);
  s.keeps_left = kLeftBytes / row_bytes >= std::min(rows, kernels.rows);
  s.span_rows = s.keeps_left && fitting > 0 ? fitting : rows;
  s.spans = ceil_div(p.block_m, s.span_rows);
  // A line more than a power of two apart: neighbours map to other cache sets.
  s.column_bytes = s.padded_depth * s.width * s.acc_bytes + 64;
  const int64_t columns = std::max<int64_t>(p.k / p.block_k, 1);
  s.group = cut.panel ? std::clamp<int64_t>(kRightBytes / s.column_bytes, 1, columns) : 1;
  s.packed_bytes = cut.panel ? round_up(s.group * s.column_bytes, 256) : 0;
  s.tile_bytes = round_up(s.span_rows * s.width * s.acc_bytes, 64);
  s.left_bytes =
      round_up(s.span_rows * (s.keeps_left ? s.padded_depth : s.depth) * s.acc_bytes, 64);
  s.right_bytes = cut.panel ? 0 : round_up(s.depth * s.width * s.acc_bytes, 64);
  s.slot_bytes = round_up(s.tile_bytes + s.left_bytes + s.right_bytes, 256) + 256;
  return s;
}

}  // namespace sparse_autotune::cpu_sampled
