// The bodies of cpu_rows' micro-kernels, written once over a vector type and compiled once per
// instruction-set level. A level's file defines SPARSE_AUTOTUNE_TARGET (a function attribute: a
// per-file flag would leak wide instructions into shared templates) and includes this; everything
// below is therefore private to the including file. No std template is used inside.
//
// A vector type L gives: T, Vec (kLanes of T), Mask, Index (a lane for each lane), Offsets (an
// int32 for each lane), kVectors (of a block's elements at most), kTile (sums that leave registers
// for what is loaded), kMost (vectors of a tile), first_lanes, zero, load, load_part, store, store_part, broadcast, multiply_add,
// add, sum, index, permute, offsets, times_plus, load_columns, gather.
#pragma once

#include "kernels/cpu/rows.h"

#ifndef SPARSE_AUTOTUNE_TARGET
#error "define SPARSE_AUTOTUNE_TARGET before including this file"
#endif
#define SPARSE_AUTOTUNE_INLINE SPARSE_AUTOTUNE_TARGET inline __attribute__((always_inline))

namespace sparse_autotune::cpu_rows {
namespace {

constexpr int64_t kLineBytes = 64;
constexpr int kMaxRows = 8;  // of a tile

SPARSE_AUTOTUNE_INLINE int64_t index_at(const void* data, bool wide, int64_t i) {
  return wide ? static_cast<const int64_t*>(data)[i] : static_cast<const int32_t*>(data)[i];
}

// A's blocks, and the rows of B that they meet.
template <class L, bool kInOrder>
struct Blocks {
  using T = typename L::T;
  const T* values;
  const uint32_t* columns;  // the lower halves of int64: none is 2^32 or more
  const void* positions;
  bool wide;
  int64_t elements;
  int64_t b_stride;  // of B from one block column to the next
  int64_t ahead;     // blocks ahead that values are fetched
  int64_t last;

  SPARSE_AUTOTUNE_INLINE Blocks(const RowsTask& t, int64_t stride)
      : values(static_cast<const T*>(t.values)),
        columns(static_cast<const uint32_t*>(t.columns)),
        positions(t.positions),
        wide(t.wide),
        elements(t.block_m * t.block_k),
        b_stride(stride),
        last(t.nnzb - 1) {
    constexpr int64_t kAheadBytes = 1024;
    ahead = (kAheadBytes / static_cast<int64_t>(sizeof(T)) + elements - 1) / elements;
  }
  SPARSE_AUTOTUNE_INLINE const T* at(int64_t i) const {
    return values + (kInOrder ? i : index_at(positions, wide, i)) * elements;
  }
  SPARSE_AUTOTUNE_INLINE int64_t b_at(int64_t i) const {
    return static_cast<int64_t>(columns[i << (wide ? 1 : 0)]) * b_stride;
  }
  // Where the values of a later block lie; of some block near the end.
  SPARSE_AUTOTUNE_INLINE const T* later(int64_t i) const {
    if (kInOrder) return values + (i + ahead) * elements;  // an address alone
    return at(i + ahead < last ? i + ahead : last);
  }
};

// Writes the sums of block row `row`, column `column`.
template <class T>
SPARSE_AUTOTUNE_INLINE void finish_vector(const RowsTask& t, int64_t row, int64_t first,
                                          int64_t count, int64_t column, T* sums) {
  const int64_t at = row * t.block_m + first;
  if (t.bias != nullptr) {
    for (int64_t r = 0; r < count; ++r) sums[r] += static_cast<const T*>(t.bias)[at + r];
  }
  if (t.activate != nullptr) t.activate(sums, count, t.activation);
  T* out = static_cast<T*>(t.out) + at * t.out_row + column * t.out_column;
  for (int64_t r = 0; r < count; ++r) out[r * t.out_row] = sums[r];
}

// A block's elements in kVectors vectors, as they lie; an element of B for each is picked from the
// block's own by a permutation. Sums of a row's elements meet at its end.
template <class L, int kVectors, bool kInOrder>
SPARSE_AUTOTUNE_TARGET void multiply_elements(const RowsTask& t) {
  using T = typename L::T;
  using Vec = typename L::Vec;
  // So many blocks at a time that a sum need not wait for the one before.
  constexpr int kBlocks = kVectors == 1 ? 4 : kVectors <= L::kVectors / 2 ? 2 : 1;
  const int64_t bm = t.block_m, bk = t.block_k, elements = bm * bk;
  const Blocks<L, kInOrder> blocks(t, bk);
  typename L::Index pick[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    int32_t k[L::kLanes];
    for (int i = 0; i < L::kLanes; ++i) {
      const int64_t e = v * L::kLanes + i;
      k[i] = e < elements ? static_cast<int32_t>(t.k_stride == 1 ? e % bk : e / bm) : 0;
    }
    pick[v] = L::index(k);
  }
  const typename L::Mask rest =
      L::first_lanes(static_cast<int>(elements - (kVectors - 1) * L::kLanes));
  const typename L::Mask depth = L::first_lanes(static_cast<int>(bk));
  int64_t begin = index_at(t.crow, t.wide_crow, 0);
  for (int64_t row = 0; row < t.rows; ++row) {
    const int64_t end = index_at(t.crow, t.wide_crow, row + 1);
    for (int64_t column = 0; column < t.n; ++column) {
      const T* const b = static_cast<const T*>(t.b) + column * t.ldb;
      Vec sum[kBlocks][kVectors];
#pragma GCC unroll 16
      for (int i = 0; i < kBlocks; ++i) {
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) sum[i][v] = L::zero();
      }
      const auto add = [&](int64_t block, int i) SPARSE_AUTOTUNE_TARGET
                       __attribute__((always_inline)) {
        const T* const a = blocks.at(block);
        const T* const later = blocks.later(block);
        const Vec x = L::load_part(b + blocks.b_at(block), depth);
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) {
          __builtin_prefetch(later + v * L::kLanes);
          const T* const from = a + v * L::kLanes;
          const Vec values = v + 1 < kVectors ? L::load(from) : L::load_part(from, rest);
          sum[i][v] = L::multiply_add(sum[i][v], values, L::permute(x, pick[v]));
        }
      };
      int64_t block = begin;
      for (; block + kBlocks <= end; block += kBlocks) {
#pragma GCC unroll 16
        for (int i = 0; i < kBlocks; ++i) add(block + i, i);
      }
      for (; block < end; ++block) add(block, 0);
      T parts[kVectors * L::kLanes], sums[kVectors * L::kLanes];
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) {
        Vec all = sum[0][v];
#pragma GCC unroll 16
        for (int i = 1; i < kBlocks; ++i) all = L::add(all, sum[i][v]);
        L::store(parts + v * L::kLanes, all);
      }
      for (int64_t r = 0; r < bm; ++r) {
        T total = parts[r * t.row_stride];
        for (int64_t k = 1; k < bk; ++k) total += parts[r * t.row_stride + k * t.k_stride];
        sums[r] = total;
      }
      finish_vector(t, row, 0, bm, column, sums);
    }
    begin = end;
  }
}

// Blocks so small that a vector holds several, one behind the other: elements of B are gathered.
template <class L>
SPARSE_AUTOTUNE_TARGET void multiply_gathered(const RowsTask& t) {
  using T = typename L::T;
  using Vec = typename L::Vec;
  const int64_t bm = t.block_m, bk = t.block_k, elements = bm * bk;
  const int64_t together = L::kLanes / elements;
  int32_t block_of[L::kLanes], k_of[L::kLanes];
  for (int i = 0; i < L::kLanes; ++i) {
    block_of[i] = i < together * elements ? static_cast<int32_t>(i / elements) : 0;
    k_of[i] = static_cast<int32_t>(i % bk);  // elements are a multiple of bk
  }
  const typename L::Offsets lane_block = L::offsets(block_of), lane_k = L::offsets(k_of);
  const typename L::Mask whole = L::first_lanes(static_cast<int>(together * elements));
  // Folds the sums of a vector's blocks into those of its first one. Lanes behind the last block
  // are zero.
  typename L::Index folds[4];
  int fold_count = 0;
  for (int64_t left = together; left > 1; left = (left + 1) / 2) {
    int32_t from[L::kLanes];
    const int64_t half = (left + 1) / 2;
    for (int i = 0; i < L::kLanes; ++i) {
      const int64_t lane = i + half * elements;
      from[i] = static_cast<int32_t>(lane < left * elements ? lane : L::kLanes - 1);
    }
    folds[fold_count++] = L::index(from);
  }
  const T* const values = static_cast<const T*>(t.values);
  int64_t begin = index_at(t.crow, t.wide_crow, 0);
  for (int64_t row = 0; row < t.rows; ++row) {
    const int64_t end = index_at(t.crow, t.wide_crow, row + 1);
    for (int64_t column = 0; column < t.n; ++column) {
      const T* const b = static_cast<const T*>(t.b) + column * t.ldb;
      Vec sum = L::zero();
      for (int64_t block = begin; block < end; block += together) {
        const int64_t count = end - block < together ? end - block : together;
        const typename L::Mask lanes =
            count == together ? whole : L::first_lanes(static_cast<int>(count * elements));
        const T* const a = values + block * elements;
        __builtin_prefetch(reinterpret_cast<const char*>(a) + 1024);
        const typename L::Offsets columns =
            L::load_columns(t.columns, t.wide, block, static_cast<int>(count), lane_block, lanes);
        const Vec x = L::gather(b, L::times_plus(columns, static_cast<int>(bk), lane_k), lanes);
        sum = L::multiply_add(sum, L::load_part(a, lanes), x);
      }
      for (int i = 0; i < fold_count; ++i) sum = L::add(sum, L::permute(sum, folds[i]));
      T parts[L::kLanes], sums[L::kLanes];
      L::store(parts, sum);
      for (int64_t r = 0; r < bm; ++r) {
        T total = parts[r * bk];
        for (int64_t k = 1; k < bk; ++k) total += parts[r * bk + k];
        sums[r] = total;
      }
      finish_vector(t, row, 0, bm, column, sums);
    }
    begin = end;
  }
}

// Large blocks, rows of a block one behind the other: kRows of them, lanes along k.
template <class L, int kRows, bool kInOrder>
SPARSE_AUTOTUNE_TARGET void multiply_deep_rows(const RowsTask& t, int64_t row, int64_t first,
                                               int64_t column) {
  using T = typename L::T;
  using Vec = typename L::Vec;
  const Blocks<L, kInOrder> blocks(t, t.block_k);
  const int64_t begin = index_at(t.crow, t.wide_crow, row);
  const int64_t end = index_at(t.crow, t.wide_crow, row + 1);
  const T* const b = static_cast<const T*>(t.b) + column * t.ldb;
  const int64_t bk = t.block_k, whole = bk / L::kLanes * L::kLanes;
  const typename L::Mask rest = L::first_lanes(static_cast<int>(bk - whole));
  Vec sum[kRows];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) sum[r] = L::zero();
  for (int64_t block = begin; block < end; ++block) {
    const T* const a = blocks.at(block) + first * bk;
    const T* const x = b + blocks.b_at(block);
    for (int64_t k = 0; k < whole; k += L::kLanes) {
      const Vec at = L::load(x + k);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        sum[r] = L::multiply_add(sum[r], L::load(a + r * bk + k), at);
      }
    }
    if (whole < bk) {
      const Vec at = L::load_part(x + whole, rest);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        sum[r] = L::multiply_add(sum[r], L::load_part(a + r * bk + whole, rest), at);
      }
    }
  }
  T sums[kRows];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) sums[r] = L::sum(sum[r]);
  finish_vector(t, row, first, kRows, column, sums);
}

// Large blocks of A^T, columns of a block one behind the other: lanes along kVectors vectors of
// rows, the last of `lanes`.
template <class L, int kVectors>
SPARSE_AUTOTUNE_TARGET void multiply_deep_columns(const RowsTask& t, int64_t row, int64_t first,
                                                  int64_t count, int64_t column) {
  using T = typename L::T;
  using Vec = typename L::Vec;
  const Blocks<L, false> blocks(t, t.block_k);
  const int64_t begin = index_at(t.crow, t.wide_crow, row);
  const int64_t end = index_at(t.crow, t.wide_crow, row + 1);
  const T* const b = static_cast<const T*>(t.b) + column * t.ldb;
  const typename L::Mask rest = L::first_lanes(static_cast<int>(count - (kVectors - 1) * L::kLanes));
  Vec sum[kVectors];
#pragma GCC unroll 16
  for (int v = 0; v < kVectors; ++v) sum[v] = L::zero();
  for (int64_t block = begin; block < end; ++block) {
    const T* a = blocks.at(block) + first;
    const T* const x = b + blocks.b_at(block);
    for (int64_t k = 0; k < t.block_k; ++k, a += t.block_m) {
      const Vec at = L::broadcast(x + k);
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) {
        const T* const from = a + v * L::kLanes;
        const Vec values = v + 1 < kVectors ? L::load(from) : L::load_part(from, rest);
        sum[v] = L::multiply_add(sum[v], values, at);
      }
    }
  }
  T sums[kVectors * L::kLanes];
#pragma GCC unroll 16
  for (int v = 0; v < kVectors; ++v) L::store(sums + v * L::kLanes, sum[v]);
  finish_vector(t, row, first, count, column, sums);
}

template <class L, bool kInOrder>
SPARSE_AUTOTUNE_TARGET void multiply_deep(const RowsTask& t) {
  for (int64_t row = 0; row < t.rows; ++row) {
    for (int64_t column = 0; column < t.n; ++column) {
      for (int64_t r = 0; r < t.block_m;) {
        const int64_t left = t.block_m - r;
        if (t.row_stride == 1 && t.block_k > 1) {
          constexpr int64_t kWidest = 4 * L::kLanes;
          const int64_t count = left < kWidest ? left : kWidest;
          if (count > 2 * L::kLanes) {
            if (count > 3 * L::kLanes) {
              multiply_deep_columns<L, 4>(t, row, r, count, column);
            } else {
              multiply_deep_columns<L, 3>(t, row, r, count, column);
            }
          } else if (count > L::kLanes) {
            multiply_deep_columns<L, 2>(t, row, r, count, column);
          } else {
            multiply_deep_columns<L, 1>(t, row, r, count, column);
          }
          r += count;
        } else if (left >= 8) {
          multiply_deep_rows<L, 8, kInOrder>(t, row, r, column);
          r += 8;
        } else if (left >= 4) {
          multiply_deep_rows<L, 4, kInOrder>(t, row, r, column);
          r += 4;
        } else {
          multiply_deep_rows<L, 1, kInOrder>(t, row, r, column);
          r += 1;
        }
      }
    }
  }
}

// B's columns one at a time.
template <class L, bool kInOrder>
SPARSE_AUTOTUNE_TARGET void multiply_vectors_in(const RowsTask& t) {
  const int64_t elements = t.block_m * t.block_k;
  if (kInOrder && 2 * elements <= L::kLanes) return multiply_gathered<L>(t);
  const int64_t vectors = (elements + L::kLanes - 1) / L::kLanes;
  if (t.block_k > L::kLanes || vectors > L::kVectors) return multiply_deep<L, kInOrder>(t);
  switch (vectors) {
    case 1:
      return multiply_elements<L, 1, kInOrder>(t);
    case 2:
      return multiply_elements<L, 2, kInOrder>(t);
    case 3:
      return multiply_elements<L, 3, kInOrder>(t);
    case 4:
      return multiply_elements<L, 4, kInOrder>(t);
    default:
      break;
  }
  if constexpr (L::kVectors > 4) {
    switch (vectors) {
      case 5:
        return multiply_elements<L, 5, kInOrder>(t);
      case 6:
        return multiply_elements<L, 6, kInOrder>(t);
      case 7:
        return multiply_elements<L, 7, kInOrder>(t);
      default:
        return multiply_elements<L, 8, kInOrder>(t);
    }
  }
}

template <class L>
SPARSE_AUTOTUNE_TARGET void multiply_vectors(const RowsTask& t) {
  if (t.positions == nullptr) {
    multiply_vectors_in<L, true>(t);
  } else {
    multiply_vectors_in<L, false>(t);
  }
}

// What multiply_tile() computes of each block row from `row` to `end_row`: rows from `first` on,
// columns from `column` to `column + width`.
struct RowsTile {
  int64_t row, end_row, first, column, width;
};

// kRows rows times kVectors vectors of B's columns: each element of A is broadcast.
template <class L, int kRows, int kVectors>
SPARSE_AUTOTUNE_TARGET void multiply_tile(const RowsTask& t, const RowsTile& tile) {
  using T = typename L::T;
  using Vec = typename L::Vec;
  const bool in_order = t.positions == nullptr;
  const Blocks<L, true> ordered(t, t.block_k * t.ldb);
  const Blocks<L, false> scattered(t, t.block_k * t.ldb);
  const int64_t row_stride = t.row_stride, k_stride = t.k_stride, bk = t.block_k, ldb = t.ldb;
  const typename L::Mask rest =
      L::first_lanes(static_cast<int>(tile.width - (kVectors - 1) * L::kLanes));
  const T* const all_b = static_cast<const T*>(t.b) + tile.column;
  int64_t begin = index_at(t.crow, t.wide_crow, tile.row);
  for (int64_t row = tile.row; row < tile.end_row; ++row) {
    const int64_t end = index_at(t.crow, t.wide_crow, row + 1);
    Vec sum[kRows][kVectors];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) sum[r][v] = L::zero();
    }
    for (int64_t block = begin; block < end; ++block) {
      const T* a = (in_order ? ordered.at(block) : scattered.at(block)) + tile.first * row_stride;
      const T* b = all_b + ordered.b_at(block);
      const T* const later = in_order ? ordered.later(block) : scattered.later(block);
      for (int64_t e = 0; e < kRows * bk; e += kLineBytes / static_cast<int64_t>(sizeof(T))) {
        __builtin_prefetch(later + e);
      }
      for (int64_t k = 0; k < bk; ++k, a += k_stride, b += ldb) {
        Vec line[kVectors];
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) {
          const T* const from = b + v * L::kLanes;
          line[v] = v + 1 < kVectors ? L::load(from) : L::load_part(from, rest);
        }
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
          const Vec value = L::broadcast(a + r * row_stride);
#pragma GCC unroll 16
          for (int v = 0; v < kVectors; ++v) sum[r][v] = L::multiply_add(sum[r][v], value, line[v]);
        }
      }
    }
    begin = end;
    const int64_t first = row * t.block_m + tile.first;
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
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) {
          T* const to = out + r * t.out_row + v * L::kLanes;
          if (v + 1 < kVectors) {
            L::store(to, sum[r][v]);
          } else {
            L::store_part(to, sum[r][v], rest);
          }
        }
      }
      continue;
    }
    T lines[kRows][kVectors * L::kLanes];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) L::store(lines[r] + v * L::kLanes, sum[r][v]);
      if (t.activate != nullptr) t.activate(lines[r], tile.width, t.activation);
    }
    for (int64_t c = 0; c < tile.width; ++c) {
      for (int r = 0; r < kRows; ++r) out[r * t.out_row + c * t.out_column] = lines[r][c];
    }
  }
}

// multiply_tile() by the number of rows, from 1 on.
using TileFunction = void (*)(const RowsTask&, const RowsTile&);
template <class L, int kVectors, int... kRows>
constexpr TileFunction tile_function(int64_t rows) {
  TileFunction found = nullptr;
  (..., (found = rows == kRows ? multiply_tile<L, kRows, kVectors> : found));
  return found;
}

template <class L>
TileFunction find_tile(int64_t rows, int64_t vectors) {
  if constexpr (L::kTile >= 24) {
    switch (vectors) {
      case 1:
        return tile_function<L, 1, 1, 2, 3, 4, 5, 6, 7, 8>(rows);
      case 2:
        return tile_function<L, 2, 1, 2, 3, 4, 5, 6, 7, 8>(rows);
      case 3:
        return tile_function<L, 3, 1, 2, 3, 4, 5, 6, 7, 8>(rows);
      default:
        return tile_function<L, 4, 1, 2, 3, 4, 5, 6>(rows);
    }
  } else {
    return vectors == 1 ? tile_function<L, 1, 1, 2, 3, 4, 5, 6, 7, 8>(rows)
                        : tile_function<L, 2, 1, 2, 3, 4, 5, 6>(rows);
  }
}

template <class L>
void multiply_columns(const RowsTask& t) {
  const int64_t tiles = (t.block_m + kMaxRows - 1) / kMaxRows;
  const int64_t tallest = (t.block_m + tiles - 1) / tiles;
  const int64_t vectors = (t.n + L::kLanes - 1) / L::kLanes;
  const int64_t fitting = L::kTile / tallest, widest = fitting < L::kMost ? fitting : L::kMost;
  const int64_t strips = (vectors + widest - 1) / widest;
  const bool whole = tiles * strips == 1;
  for (int64_t row = 0; row < t.rows; row += whole ? t.rows : 1) {
    RowsTile tile{row, whole ? t.rows : row + 1, 0, 0, 0};
    for (int64_t strip = 0; strip < strips; ++strip) {
      tile.column = vectors * strip / strips * L::kLanes;
      const int64_t end = vectors * (strip + 1) / strips * L::kLanes;
      tile.width = (end < t.n ? end : t.n) - tile.column;
      for (int64_t i = 0; i < tiles; ++i) {
        tile.first = t.block_m * i / tiles;
        const int64_t rows = t.block_m * (i + 1) / tiles - tile.first;
        find_tile<L>(rows, (tile.width + L::kLanes - 1) / L::kLanes)(t, tile);
      }
    }
  }
}

template <class L>
constexpr RowKernels kKernelsOf{L::kLanes, multiply_vectors<L>, multiply_columns<L>};

template <class Floats, class Doubles>
const RowKernels* row_kernels_of(DType dtype) {
  if (dtype == DType::kFloat32) return &kKernelsOf<Floats>;
  if (dtype == DType::kFloat64) return &kKernelsOf<Doubles>;
  return nullptr;
}

}  // namespace
}  // namespace sparse_autotune::cpu_rows
