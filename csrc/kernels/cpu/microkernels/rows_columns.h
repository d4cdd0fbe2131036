// cpu_rows with lanes along B's columns; rows_microkernel.h includes it.
#pragma once

#include "kernels/cpu/microkernels/rows_walk.h"
#include "kernels/cpu/microkernels/vectors.h"

namespace sparse_autotune::cpu_rows {
namespace {

constexpr int kMaxRows = 8;  // of a tile

// What multiply_tile() computes of each block row from `row` to `end_row`: rows from `first` on,
// columns from `column` to `column + width`.
struct RowsTile {
  int64_t row, end_row, first, column, width;
};

// Writes a tile's rows to `out` in any layout, activated.
template <class T>
__attribute__((noinline)) void finish_lines(const RowsTask& t, T* lines, int64_t rows,
                                            int64_t stride, int64_t width, T* out) {
  if (t.activate != nullptr) {
    for (int64_t r = 0; r < rows; ++r) t.activate(lines + r * stride, width, t.activation);
  }
  for (int64_t c = 0; c < width; ++c) {
    for (int64_t r = 0; r < rows; ++r)
      out[r * t.out_row + c * t.out_column] = lines[r * stride + c];
  }
}

// Bias, activation and `out` for a tile's sums, whose first row is row `first` of C.
template <class L, int kRows, int kVectors>
SPARSE_AUTOTUNE_INLINE void store_tile(const RowsTask& t, const RowsTile& tile, int64_t first,
                                       typename L::Mask rest,
                                       typename L::Vec (&sum)[kRows][kVectors]) {
  using T = typename L::T;
  using Vec = typename L::Vec;
  if (t.bias != nullptr) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const Vec value = L::broadcast(static_cast<const T*>(t.bias) + first + r);
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) sum[r][v] = L::add(sum[r][v], value);
    }
  }
  T* const out = static_cast<T*>(t.out) + first * t.out_row + tile.column * t.out_column;
  if (t.out_column == 1 && t.activate == nullptr) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      store_part<L>(out + r * t.out_row, sum[r], rest);
    }
    return;
  }
  T lines[kRows * kVectors * L::kLanes];
  store_all<L>(lines, kVectors * L::kLanes, sum);
  finish_lines(t, lines, kRows, kVectors * L::kLanes, tile.width, out);
}

// kRows rows times kVectors vectors of B's columns: each element of A is broadcast.
template <class L, int kRows, int kVectors, bool kInOrder, int kDepth>
SPARSE_AUTOTUNE_TARGET void multiply_tile(const RowsTask& t, const RowsTile& tile) {
  using T = typename L::T;
  using Vec = typename L::Vec;
  // So many blocks at a time that a sum need not wait for the one before.
  constexpr int kSums = kRows * kVectors, kBlocks = kSums <= 2 ? 4 : kSums <= 6 ? 2 : 1;
  const int64_t row_stride = t.row_stride, k_stride = t.k_stride, bk = t.block_k, ldb = t.ldb;
  const typename L::Mask rest =
      L::first_lanes(static_cast<int>(tile.width - (kVectors - 1) * L::kLanes));
  const int64_t fetched = kBlocks * kRows * bk * static_cast<int64_t>(sizeof(T));
  const T* const all_b = static_cast<const T*>(t.b) + tile.column;
  int64_t begin = t.crow[tile.row];
  for (int64_t row = tile.row; row < tile.end_row; ++row) {
    const int64_t end = t.crow[row + 1];
    Vec sums[kBlocks][kRows][kVectors];
#pragma GCC unroll 16
    for (int i = 0; i < kBlocks; ++i) clear<L>(sums[i]);
    Walk<L, kInOrder> walk(t, begin, tile.first, bk * ldb);
    const auto add = [&](int i) SPARSE_AUTOTUNE_TARGET __attribute__((always_inline)) {
      const T* a;
      int64_t b_at;
      walk.next(&a, &b_at);
      const T* b = all_b + b_at;
      const auto step = [&](const T* a_k, const T* b_k) SPARSE_AUTOTUNE_TARGET
          __attribute__((always_inline)) {
        Vec line[kVectors];
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) line[v] = load_vector<L, kVectors>(b_k, v, rest);
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
          const Vec value = L::broadcast(a_k + r * row_stride);
#pragma GCC unroll 16
          for (int v = 0; v < kVectors; ++v) {
            sums[i][r][v] = L::multiply_add(sums[i][r][v], value, line[v]);
          }
        }
      };
      if constexpr (kDepth > 0) {
#pragma GCC unroll 16
        for (int k = 0; k < kDepth; ++k) step(a + k, b + k * ldb);
      } else {
        int64_t k = bk;
        do {
          step(a, b);
          a += k_stride;
          b += ldb;
        } while (--k > 0);
      }
    };
    int64_t left = end - begin;
    for (; left >= kBlocks; left -= kBlocks) {
      walk.fetch(fetched);
#pragma GCC unroll 16
      for (int i = 0; i < kBlocks; ++i) add(i);
    }
    for (; left > 0; --left) add(0);
    Vec(&sum)[kRows][kVectors] = sums[0];
#pragma GCC unroll 16
    for (int i = 1; i < kBlocks; ++i) add_to<L>(sum, sums[i]);
    begin = end;
    store_tile<L, kRows, kVectors>(t, tile, row * t.block_m + tile.first, rest, sum);
  }
}

// multiply_tile() by the number of rows, from 1 on.
using TileFunction = void (*)(const RowsTask&, const RowsTile&);
template <class L, bool kInOrder, int kVectors, int... kRows>
constexpr TileFunction tile_function(int64_t rows) {
  TileFunction found = nullptr;
  (..., (found = rows == kRows ? multiply_tile<L, kRows, kVectors, kInOrder, 0> : found));
  return found;
}

// Of one vector, of blocks in order. Tiles of few rows, of blocks as deep as they are short: a loop
// along k would cost as much again.
template <class L>
constexpr TileFunction narrow_tile(int64_t rows, int64_t depth) {
  if (rows == 1) {
    if (depth == 1) return multiply_tile<L, 1, 1, true, 1>;
    if (depth == 2) return multiply_tile<L, 1, 1, true, 2>;
    if (depth == 3) return multiply_tile<L, 1, 1, true, 3>;
    if (depth == 4) return multiply_tile<L, 1, 1, true, 4>;
  }
  if (rows == 2 && depth == 1) return multiply_tile<L, 2, 1, true, 1>;
  if (rows == 2 && depth == 2) return multiply_tile<L, 2, 1, true, 2>;
  return tile_function<L, true, 1, 1, 2, 3, 4, 5, 6, 7, 8>(rows);
}

template <class L>
TileFunction find_tile(const RowsTask& t, int64_t rows, int64_t vectors) {
  if constexpr (L::kMost == 4) {
    if (vectors == 4) return tile_function<L, false, 4, 1, 2, 3, 4, 5, 6>(rows);
    if (vectors == 2) return tile_function<L, false, 2, 1, 2, 3, 4, 5, 6, 7, 8>(rows);
  } else {
    if (vectors == 2) return tile_function<L, false, 2, 1, 2, 3, 4, 5, 6>(rows);
  }
  if (t.positions.data != nullptr || t.k_stride != 1) {
    return tile_function<L, false, 1, 1, 2, 3, 4, 5, 6, 7, 8>(rows);
  }
  if (t.n <= L::Quarter::kLanes) return narrow_tile<typename L::Quarter>(rows, t.block_k);
  if (t.n <= L::Half::kLanes) return narrow_tile<typename L::Half>(rows, t.block_k);
  return narrow_tile<L>(rows, t.block_k);
}

template <class L>
void multiply_columns(const RowsTask& t) {
  const int64_t tiles = (t.block_m + kMaxRows - 1) / kMaxRows;
  const int64_t tallest = (t.block_m + tiles - 1) / tiles;
  const auto vectors_of = [&](int64_t columns) {  // of the next tile: 4, 2 or 1
    int64_t vectors = L::kMost;
    while (vectors > 1 && (vectors * tallest > L::kTile || (vectors - 1) * L::kLanes >= columns)) {
      vectors /= 2;
    }
    return vectors;
  };
  const bool one_pass = tiles == 1 && t.n <= vectors_of(t.n) * L::kLanes;
  for (int64_t row = 0; row < t.rows; row += one_pass ? t.rows : 1) {
    RowsTile tile{row, one_pass ? t.rows : row + 1, 0, 0, 0};
    for (; tile.column < t.n; tile.column += tile.width) {
      const int64_t left = t.n - tile.column, vectors = vectors_of(left);
      tile.width = left < vectors * L::kLanes ? left : vectors * L::kLanes;
      for (int64_t i = 0; i < tiles; ++i) {
        tile.first = t.block_m * i / tiles;
        find_tile<L>(t, t.block_m * (i + 1) / tiles - tile.first, vectors)(t, tile);
      }
    }
  }
}

}  // namespace
}  // namespace sparse_autotune::cpu_rows
