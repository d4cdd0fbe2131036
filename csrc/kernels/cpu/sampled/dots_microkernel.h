// The body of sampled_dots' micro-kernel, written once over a vector type and compiled once per
// instruction-set level, as those of cpu_rows are.
//
// A vector type L is one of vectors_*.h with kRows (of a tile at most), kColumns (of a tile of two
// rows) and fold: fold<kGroup>(a, b) halves the groups of kGroup lanes that each number's terms
// stand in, so that both vectors' numbers fit into one, and settle, which puts numbers that have
// been folded down to a lane each into their order.
#pragma once

#include "kernels/cpu/microkernels/vectors.h"
#include "kernels/cpu/sampled/sampled_dots.h"

namespace sparse_autotune::cpu_dots {
namespace {

template <class L, int kGroup, int kCount>
SPARSE_AUTOTUNE_INLINE typename L::Vec fold_all(const typename L::Vec (&x)[kCount]) {
  if constexpr (kGroup == 1) {
    return L::settle(x[0]);
  } else {
    typename L::Vec folded[(kCount + 1) / 2];
#pragma GCC unroll 16
    for (int i = 0; i < kCount; i += 2) {
      folded[i / 2] = L::template fold<kGroup>(x[i], x[i + 1 < kCount ? i + 1 : i]);
    }
    return fold_all<L, kGroup / 2>(folded);
  }
}

// The dot products of kRows rows of C and kColumns rows of B, row by row.
template <class L, int kRows, int kColumns>
SPARSE_AUTOTUNE_TARGET void multiply_tile(const DotsTask& t, int64_t row,
                                          const typename L::T* const* columns, typename L::T* out) {
  using T = typename L::T;
  using Vec = typename L::Vec;
  constexpr int kSums = kRows * kColumns;
  const T* c = static_cast<const T*>(t.c) + row * t.depth;
  const T* b[kColumns];
  Vec sums[kSums];
#pragma GCC unroll 16
  for (int j = 0; j < kColumns; ++j) b[j] = columns[j];
  clear<L>(sums);
  const int64_t depth = t.depth;
  for (int64_t chunk = 0;;) {
    for (int64_t term = 0; term < depth; term += L::kLanes) {
      Vec left[kRows];
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) left[r] = L::load(c + r * depth + term);
#pragma GCC unroll 16
      for (int j = 0; j < kColumns; ++j) {
        const Vec right = L::load(b[j] + term);
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
          sums[r * kColumns + j] = L::multiply_add(sums[r * kColumns + j], left[r], right);
        }
      }
    }
    if (++chunk == t.chunks) break;
    c += t.c_chunk;
#pragma GCC unroll 16
    for (int j = 0; j < kColumns; ++j) b[j] += t.b_chunk;
  }
#pragma GCC unroll 16
  for (int first = 0; first < kSums; first += L::kLanes) {
    constexpr int kSome = kSums < L::kLanes ? kSums : L::kLanes;
    Vec some[kSome];
#pragma GCC unroll 16
    for (int i = 0; i < kSome; ++i) some[i] = sums[first + i < kSums ? first + i : first];
    L::store(out + first, fold_all<L, L::kLanes>(some));
  }
}

// Rows from `row` on; `places`: where each column's numbers go to.
template <class L, int kRows, int kColumns>
SPARSE_AUTOTUNE_INLINE void multiply_rows(const DotsTask& t, int64_t row,
                                          const typename L::T* const* columns,
                                          typename L::T* const* places) {
  typename L::T tile[4 * 8];
  multiply_tile<L, kRows, kColumns>(t, row, columns, tile);
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    const int64_t offset = (row + r) * t.block_k;
#pragma GCC unroll 16
    for (int j = 0; j < kColumns; ++j) {
      typename L::T& to = places[j][offset];
      to = t.add ? to + tile[r * kColumns + j] : tile[r * kColumns + j];
    }
  }
}

// All blocks, so many columns at a time; the last few are filled up with columns that are written
// to nowhere.
template <class L, int kColumns>
SPARSE_AUTOTUNE_TARGET void multiply_columns(const DotsTask& t) {
  using T = typename L::T;
  const int64_t tiles = ceil_div(t.block_m, L::kRows), bk = t.block_k;
  int64_t first[kMostSide + 1];
  for (int64_t i = 0; i <= tiles; ++i) first[i] = t.block_m * i / tiles;  // of nearly equal height
  const int64_t all = t.count * bk, next_block = t.block_m * bk - bk + 1;
  const T* const b = static_cast<const T*>(t.b);
  T* place = static_cast<T*>(t.sums);
  T nowhere[kMostSide * kMostSide];
  int64_t block = 0, k = 0;
  for (int64_t done = 0; done < all; done += kColumns) {
    const T* columns[kColumns];
    T* places[kColumns];
    const int count = static_cast<int>(all - done < kColumns ? all - done : kColumns);
    for (int j = 0; j < count; ++j) {
      columns[j] = b + (t.columns[block] * bk + k) * t.depth;
      places[j] = place;
      if (++k < bk) {
        ++place;
      } else {
        k = 0;
        ++block;
        place += next_block;
      }
    }
    for (int j = count; j < kColumns; ++j) {
      columns[j] = columns[0];
      places[j] = nowhere;
    }
    for (int64_t i = 0; count < kColumns && i < t.block_m * bk; ++i) nowhere[i] = 0;
    for (int64_t i = 0; i < tiles; ++i) {
      const int64_t row = first[i], rows = first[i + 1] - row;
      if (rows == 1) multiply_rows<L, 1, kColumns>(t, row, columns, places);
      if (rows == 2) multiply_rows<L, 2, kColumns>(t, row, columns, places);
      if constexpr (L::kRows == 4 && kColumns == 4) {
        if (rows == 3) multiply_rows<L, 3, kColumns>(t, row, columns, places);
        if (rows == 4) multiply_rows<L, 4, kColumns>(t, row, columns, places);
      }
    }
  }
}

// Blocks of one element: their sums lie side by side.
template <class L>
SPARSE_AUTOTUNE_TARGET void multiply_elements(const DotsTask& t) {
  using T = typename L::T;
  constexpr int kColumns = 8;
  const T* const b = static_cast<const T*>(t.b);
  T* const sums = static_cast<T*>(t.sums);
  for (int64_t done = 0; done < t.count; done += kColumns) {
    const int64_t left = t.count - done, count = left < kColumns ? left : kColumns;
    const T* columns[kColumns];
    T tile[2 * kColumns];
#pragma GCC unroll 16
    for (int j = 0; j < kColumns; ++j) {
      columns[j] = b + t.columns[done + (j < count ? j : 0)] * t.depth;
    }
    multiply_tile<L, 1, kColumns>(t, 0, columns, tile);
    for (int64_t j = 0; t.add && j < count; ++j) tile[j] += sums[done + j];
#pragma GCC unroll 16
    for (int j = 0; j < kColumns; ++j) {
      if (j < count) sums[done + j] = tile[j];
    }
  }
}

// Tiles of one row load an operand for each multiplication: as many sums as hide its latency.
template <class L>
void dots(const DotsTask& t) {
  if (t.block_m * t.block_k == 1) {
    multiply_elements<L>(t);
  } else if (t.block_m == 1 || (L::kColumns == 8 && t.block_m == 2)) {
    multiply_columns<L, 8>(t);
  } else {
    multiply_columns<L, 4>(t);
  }
}

template <class L>
constexpr DotsKernels kKernelsOf{L::kLanes, dots<L>};

template <class Floats, class Doubles>
const DotsKernels* dots_kernels_of(DType dtype) {
  return dtype == DType::kFloat64 ? &kKernelsOf<Doubles> : &kKernelsOf<Floats>;
}

}  // namespace
}  // namespace sparse_autotune::cpu_dots
