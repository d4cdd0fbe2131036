// The bodies of cpu_rows' micro-kernels, written once over a vector type and compiled once per
// instruction-set level. A level's file defines SPARSE_AUTOTUNE_TARGET (a function attribute: a
// per-file flag would leak wide instructions into shared templates) and includes this; everything
// below is therefore private to the including file. No std template is used inside.
//
// A vector type L gives: T, Vec (kLanes of T), Mask, Index (a lane for each lane), kVectors
// (of a block's elements at most), kTile (sums that leave registers for what is loaded), kMost
// (vectors of a tile), first_lanes, zero, load, load_part, store, store_part, broadcast,
// multiply_add, add, sum, index, permute.
#pragma once

#include "kernels/cpu/rows.h"

#ifndef SPARSE_AUTOTUNE_TARGET
#error "define SPARSE_AUTOTUNE_TARGET before including this file"
#endif
#define SPARSE_AUTOTUNE_INLINE SPARSE_AUTOTUNE_TARGET inline __attribute__((always_inline))

namespace sparse_autotune::cpu_rows {
namespace {

constexpr int kMaxRows = 8;  // of a tile

SPARSE_AUTOTUNE_INLINE int64_t index_at(const void* data, bool wide, int64_t i) {
  return wide ? static_cast<const int64_t*>(data)[i] : static_cast<const int32_t*>(data)[i];
}

// The walk over a row's blocks: where the values of each lie and which rows of B it meets.
template <class L, bool kInOrder>
struct Walk {
  using T = typename L::T;
  const T* values;         // of the next block, or of all of A
  const uint32_t* column;  // of the next block: the lower halves of int64, as none is 2^32 or more
  const char* position;    // of the next block
  int64_t step;            // from one column to the next
  int64_t elements, b_stride;
  bool wide;
  const char* last_position;

  // Of rows of blocks from `first` on.
  SPARSE_AUTOTUNE_INLINE Walk(const RowsTask& t, int64_t begin, int64_t first, int64_t stride_of_b)
      : values(static_cast<const T*>(t.values) + first * t.row_stride),
        column(static_cast<const uint32_t*>(t.columns)),
        position(static_cast<const char*>(t.positions)),
        step(t.wide ? 2 : 1),
        elements(t.block_m * t.block_k),
        b_stride(stride_of_b),
        wide(t.wide),
        last_position(position + (t.nnzb - 1) * step * 4) {
    column += begin * step;
    if (kInOrder) {
      values += begin * elements;
    } else {
      position += begin * step * 4;
    }
  }
  // To the next block. Each address is kept by itself: derived from each other they would need more
  // registers than there are.
  SPARSE_AUTOTUNE_INLINE void next(const T** a, int64_t* b) {
    *b = static_cast<int64_t>(*column) * b_stride;
    column += step;
    asm("" : "+r"(column));
    if (kInOrder) {
      *a = values;
      values += elements;
      asm("" : "+r"(values));
    } else {
      *a = values + index_at(position, wide, 0) * elements;
      position += step * 4;
    }
  }
  // Fetches `bytes` of what lies some way ahead, at least a line: a walk of short steps is faster
  // than the hardware fetches. Of scattered blocks a later one.
  SPARSE_AUTOTUNE_INLINE void fetch(int64_t bytes) const {
    constexpr int64_t kAheadBytes = 1024, kBlocksAhead = 8, kLine = 64;
    const char* from = reinterpret_cast<const char*>(values) + kAheadBytes;
    if (!kInOrder) {
      const char* const later = position + kBlocksAhead * step * 4;
      from = reinterpret_cast<const char*>(
          values + index_at(later < last_position ? later : last_position, wide, 0) * elements);
    }
    do {
      __builtin_prefetch(from);
      from += kLine;
      bytes -= kLine;
    } while (bytes > 0);
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
  const typename L::Mask height = L::first_lanes(static_cast<int>(bm));
  // Of one vector's sums those of the k-th elements of all rows.
  typename L::Index meet[L::kLanes];
  for (int64_t k = 0; kVectors == 1 && k < bk; ++k) {
    int32_t from[L::kLanes];
    for (int r = 0; r < L::kLanes; ++r) {
      from[r] = static_cast<int32_t>(r < bm ? r * t.row_stride + k * t.k_stride : 0);
    }
    meet[k] = L::index(from);
  }
  const int64_t fetched = kBlocks * elements * static_cast<int64_t>(sizeof(T));
  const bool plain = t.bias == nullptr && t.activate == nullptr && t.out_row == 1;
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
      Walk<L, kInOrder> walk(t, begin, 0, bk);
      const auto add = [&](int i) SPARSE_AUTOTUNE_TARGET __attribute__((always_inline)) {
        const T* a;
        int64_t b_at;
        walk.next(&a, &b_at);
        const Vec x = L::load_part(b + b_at, depth);
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) {
          const T* const from = a + v * L::kLanes;
          const Vec values = v + 1 < kVectors ? L::load(from) : L::load_part(from, rest);
          sum[i][v] = L::multiply_add(sum[i][v], values, L::permute(x, pick[v]));
        }
      };
      int64_t left = end - begin;
      for (; left >= kBlocks; left -= kBlocks) {
        walk.fetch(fetched);
#pragma GCC unroll 16
        for (int i = 0; i < kBlocks; ++i) add(i);
      }
      for (; left > 0; --left) add(0);
#pragma GCC unroll 16
      for (int i = 1; i < kBlocks; ++i) {
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) sum[0][v] = L::add(sum[0][v], sum[i][v]);
      }
      if constexpr (kVectors == 1) {
        Vec total = L::permute(sum[0][0], meet[0]);
        for (int64_t k = 1; k < bk; ++k) total = L::add(total, L::permute(sum[0][0], meet[k]));
        if (plain) {
          L::store_part(static_cast<T*>(t.out) + row * bm + column * t.out_column, total, height);
          continue;
        }
        T sums[L::kLanes];
        L::store(sums, total);
        finish_vector(t, row, 0, bm, column, sums);
        continue;
      }
      T parts[kVectors * L::kLanes], sums[kVectors * L::kLanes];
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) L::store(parts + v * L::kLanes, sum[0][v]);
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

// Blocks of one or two elements: a vector holds several, one behind the other, and elements of B
// are gathered.
template <class L>
SPARSE_AUTOTUNE_TARGET void multiply_gathered(const RowsTask& t) {
  using T = typename L::T;
  using Vec = typename L::Vec;
  const int64_t bm = t.block_m, bk = t.block_k, elements = bm * bk;
  const int64_t together = L::kLanes / elements;
  int32_t block_of[L::kLanes], k_of[L::kLanes];
  for (int i = 0; i < L::kLanes; ++i) {
    block_of[i] = static_cast<int32_t>(i / elements);
    k_of[i] = static_cast<int32_t>(i % bk);  // elements are a multiple of bk
  }
  const typename L::Offsets lane_block = L::offsets(block_of), lane_k = L::offsets(k_of);
  const typename L::Mask all = L::first_lanes(L::kLanes);
  // The upper half of a vector's sums to its lower half, until those of one block are left.
  typename L::Index folds[4];
  int fold_count = 0;
  for (int64_t half = L::kLanes / 2; half >= elements; half /= 2) {
    int32_t from[L::kLanes];
    for (int i = 0; i < L::kLanes; ++i) from[i] = static_cast<int32_t>((i + half) % L::kLanes);
    folds[fold_count++] = L::index(from);
  }
  int64_t begin = index_at(t.crow, t.wide_crow, 0);
  for (int64_t row = 0; row < t.rows; ++row) {
    const int64_t end = index_at(t.crow, t.wide_crow, row + 1);
    for (int64_t column = 0; column < t.n; ++column) {
      const T* const b = static_cast<const T*>(t.b) + column * t.ldb;
      const T* a = static_cast<const T*>(t.values) + begin * elements;
      Vec sum = L::zero();
      const auto add = [&](int64_t block, int64_t count, typename L::Mask lanes)
          SPARSE_AUTOTUNE_TARGET __attribute__((always_inline)) {
        __builtin_prefetch(reinterpret_cast<const char*>(a) + 1024);
        const typename L::Offsets columns =
            L::load_columns(t.columns, t.wide, block, static_cast<int>(count), lane_block, lanes);
        const typename L::Offsets at =
            bk == 1 ? columns : L::add_offsets(L::add_offsets(columns, columns), lane_k);
        sum = L::multiply_add(sum, L::load_part(a, lanes), L::gather(b, at, lanes));
        a += L::kLanes;
      };
      int64_t block = begin;
      for (; block + together <= end; block += together) add(block, together, all);
      if (block < end) {
        add(block, end - block, L::first_lanes(static_cast<int>((end - block) * elements)));
      }
      for (int i = 0; i < fold_count; ++i) sum = L::add(sum, L::permute(sum, folds[i]));
      T sums[L::kLanes];
      L::store(sums, sum);
      if (bk == 2) sums[0] += sums[1];
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
  const int64_t begin = index_at(t.crow, t.wide_crow, row);
  Walk<L, kInOrder> walk(t, begin, first, t.block_k);
  const int64_t end = index_at(t.crow, t.wide_crow, row + 1);
  const T* const b = static_cast<const T*>(t.b) + column * t.ldb;
  const int64_t bk = t.block_k, whole = bk / L::kLanes * L::kLanes;
  const typename L::Mask rest = L::first_lanes(static_cast<int>(bk - whole));
  Vec sum[kRows];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) sum[r] = L::zero();
  for (int64_t block = begin; block < end; ++block) {
    const T* a;
    int64_t b_at;
    walk.next(&a, &b_at);
    const T* const x = b + b_at;
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
  const int64_t begin = index_at(t.crow, t.wide_crow, row);
  Walk<L, false> walk(t, begin, first, t.block_k);
  const int64_t end = index_at(t.crow, t.wide_crow, row + 1);
  const T* const b = static_cast<const T*>(t.b) + column * t.ldb;
  const typename L::Mask rest =
      L::first_lanes(static_cast<int>(count - (kVectors - 1) * L::kLanes));
  Vec sum[kVectors];
#pragma GCC unroll 16
  for (int v = 0; v < kVectors; ++v) sum[v] = L::zero();
  for (int64_t block = begin; block < end; ++block) {
    const T* a;
    int64_t b_at;
    walk.next(&a, &b_at);
    const T* const x = b + b_at;
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

// B's columns one at a time. Narrow vectors where a block is small: fewer of their loads lie on two
// lines.
template <class L, bool kInOrder>
SPARSE_AUTOTUNE_TARGET void multiply_vectors_in(const RowsTask& t) {
  const int64_t elements = t.block_m * t.block_k;
  if (kInOrder && elements <= 2) return multiply_gathered<L>(t);
  if (elements <= L::Quarter::kLanes) return multiply_elements<typename L::Quarter, 1, kInOrder>(t);
  if (elements <= L::Half::kLanes) return multiply_elements<typename L::Half, 1, kInOrder>(t);
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
  int64_t begin = index_at(t.crow, t.wide_crow, tile.row);
  for (int64_t row = tile.row; row < tile.end_row; ++row) {
    const int64_t end = index_at(t.crow, t.wide_crow, row + 1);
    Vec sums[kBlocks][kRows][kVectors];
#pragma GCC unroll 16
    for (int i = 0; i < kBlocks; ++i) {
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) sums[i][r][v] = L::zero();
      }
    }
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
        for (int v = 0; v < kVectors; ++v) {
          const T* const from = b_k + v * L::kLanes;
          line[v] = v + 1 < kVectors ? L::load(from) : L::load_part(from, rest);
        }
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
    for (int i = 1; i < kBlocks; ++i) {
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) sum[r][v] = L::add(sum[r][v], sums[i][r][v]);
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
template <class L, bool kInOrder, int kVectors, int... kRows>
constexpr TileFunction tile_function(int64_t rows) {
  TileFunction found = nullptr;
  (..., (found = rows == kRows ? multiply_tile<L, kRows, kVectors, kInOrder, 0> : found));
  return found;
}

// Tiles of few rows, of blocks as deep as they are short: a loop along k would cost as much again.
template <class L, int kRows>
constexpr TileFunction shallow_function(int64_t depth) {
  switch (depth) {
    case 1:
      return multiply_tile<L, kRows, 1, true, 1>;
    case 2:
      return multiply_tile<L, kRows, 1, true, 2>;
    case 3:
      return multiply_tile<L, kRows, 1, true, 3>;
    default:
      return multiply_tile<L, kRows, 1, true, 4>;
  }
}

template <class L, bool kInOrder>
TileFunction find_narrow_tile(int64_t rows, int64_t depth) {
  if (kInOrder && depth <= 4 && rows == 1) return shallow_function<L, 1>(depth);
  if (kInOrder && depth <= 4 && rows == 2) return shallow_function<L, 2>(depth);
  return tile_function<L, kInOrder, 1, 1, 2, 3, 4, 5, 6, 7, 8>(rows);
}

template <class L, bool kInOrder>
TileFunction find_tile(int64_t rows, int64_t width, int64_t depth) {
  if constexpr (kInOrder) {
    if (width <= L::Quarter::kLanes) {
      return find_narrow_tile<typename L::Quarter, kInOrder>(rows, depth);
    }
    if (width <= L::Half::kLanes) return find_narrow_tile<typename L::Half, kInOrder>(rows, depth);
  }
  const int64_t vectors = (width + L::kLanes - 1) / L::kLanes;
  if (vectors == 1) return find_narrow_tile<L, kInOrder>(rows, depth);
  if constexpr (L::kTile >= 24) {
    if (vectors == 2) return tile_function<L, kInOrder, 2, 1, 2, 3, 4, 5, 6, 7, 8>(rows);
    if (vectors == 3) return tile_function<L, kInOrder, 3, 1, 2, 3, 4, 5, 6, 7, 8>(rows);
    return tile_function<L, kInOrder, 4, 1, 2, 3, 4, 5, 6>(rows);
  } else {
    return tile_function<L, kInOrder, 2, 1, 2, 3, 4, 5, 6>(rows);
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
        const auto find = t.positions == nullptr ? find_tile<L, true> : find_tile<L, false>;
        find(rows, tile.width, t.block_k)(t, tile);
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
