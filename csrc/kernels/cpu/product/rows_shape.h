// Sizes of one launch of cpu_rows: what is copied, cut and widened at a time.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "kernels/cpu/shared/tiled_blocking.h"
#include "operators/product/product.h"

namespace sparse_autotune::cpu_rows {

// As many columns of a column-major B are multiplied one at a time. With more, B is turned and a
// step multiplies all of them; that starts to pay earlier where blocks are narrow, as each column
// needs its own loads of the indices: with 1x1 blocks from two columns on (2 to 3.7 times).
inline int64_t few_columns(const Problem& p) {
  return std::min<int64_t>(std::bit_width(static_cast<uint64_t>(p.block_k)), 4);
}
// Long rows are cut into segments of so many elements of A, but A into no more than kSegments.
inline constexpr int64_t kSegmentElements = 32 << 10;
inline constexpr int64_t kSegments = 512;
inline constexpr int64_t kSegmentsBytes = 64 << 20;  // that their sums may take
// Of half types so many elements of A, and sums, at a time.
inline constexpr int64_t kWidened = 4096, kSums = 4096, kMostRows = 512;

// Sizes of one launch: a pure function of the problem, so that workspace_bytes() and launch()
// agree.
struct Shape {
  bool vectors;        // the form for one column
  int64_t ldb;         // of B as read: from one column to the next (vectors), or from row to row
  int64_t b_bytes;     // of B's copy; 0: it is read in place
  int64_t segment;     // blocks; 0: no row is cut
  int64_t sums_bytes;  // of the segments
  // Of half types: bytes of the widened bias; blocks that are widened, and block rows that are
  // multiplied, at a time; bytes of a slot's values, of its sums, of all that it has.
  int64_t bias_bytes, blocks, rows, values_bytes, part_bytes, slot_bytes;
};

inline Shape shape_of(const Problem& p, int64_t lanes) {
  using cpu_tiled::round_up;
  Shape s{};
  const bool column_major = p.b_layout == Layout::kColMajor, half = is_half(p.dtype);
  const int64_t size = half ? 4 : size_of(p.dtype), elements = p.block_m * p.block_k;
  // Into the rows of C, sums of one column after another would be written one by one.
  const bool columns = column_major && p.c_layout == Layout::kColMajor;
  s.vectors = p.n == 1 || (columns && p.n <= few_columns(p));
  const bool in_place = !half && (s.vectors ? column_major || p.ldb == 1 : !column_major);
  s.ldb = in_place ? p.ldb : s.vectors ? p.k : column_major ? round_up(p.n, lanes) : p.n;
  if (!in_place) s.b_bytes = round_up(p.batch * s.ldb * (s.vectors ? p.n : p.k) * size, 256);
  if (half) {
    const int64_t row_sums = std::max<int64_t>(p.block_m * p.n, 1);
    s.bias_bytes = p.has_bias ? round_up(p.m * size, 256) : 0;
    s.blocks = std::max<int64_t>(kWidened / elements, 1);
    s.rows = std::clamp<int64_t>(kSums / row_sums, 1, kMostRows);
    s.values_bytes = round_up(s.blocks * elements * size, 64);
    s.part_bytes = round_up((std::max(kSums, row_sums) + lanes) * size, 64);
    // Twice the sums: those of a long row's part, too.
    s.slot_bytes = round_up(s.values_bytes + 2 * s.part_bytes + (s.rows + 1) * 8, 256) + 256;
    return s;
  }
  const int64_t segment =
      std::max(ceil_div(kSegmentElements, elements), ceil_div(p.nnzb, kSegments));
  const int64_t bytes = 2 * (p.nnzb / segment + 1) * p.batch * p.block_m * p.n * size;
  if (p.longest_row > segment && bytes <= kSegmentsBytes) {
    s.segment = segment;
    s.sums_bytes = bytes;
  }
  return s;
}

}  // namespace sparse_autotune::cpu_rows
