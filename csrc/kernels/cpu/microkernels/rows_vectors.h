// cpu_rows for one column of B at a time; rows_microkernel.h includes it.
#pragma once

#include "kernels/cpu/microkernels/rows_walk.h"
#include "kernels/cpu/microkernels/vectors.h"

namespace sparse_autotune::cpu_rows {
namespace {

// Sums are written as they are, one behind the other.
inline bool is_plain(const RowsTask& t) {
  return t.bias == nullptr && t.activate == nullptr && t.out_row == 1;
}

// Writes the sums of rows of block row `row`, from `first` on. Once a row: not worth being compiled
// into each of its callers.
template <class T>
__attribute__((noinline)) void finish_rows(const RowsTask& t, int64_t row, int64_t first,
                                           int64_t count, int64_t column, T* sums) {
  const int64_t at = row * t.block_m + first;
  if (t.bias != nullptr) {
    for (int64_t r = 0; r < count; ++r) sums[r] += static_cast<const T*>(t.bias)[at + r];
  }
  if (t.activate != nullptr) t.activate(sums, count, t.activation);
  T* out = static_cast<T*>(t.out) + at * t.out_row + column * t.out_column;
  for (int64_t r = 0; r < count; ++r) out[r * t.out_row] = sums[r];
}

// The same of sums of a block's elements one by one.
template <class T>
__attribute__((noinline)) void finish_elements(const RowsTask& t, int64_t row, int64_t column,
                                               const T* parts, T* sums) {
  for (int64_t r = 0; r < t.block_m; ++r) {
    const T* part = parts + r * t.row_stride;
    T total = *part;
    for (int64_t k = 1; k < t.block_k; ++k) total += *(part += t.k_stride);
    sums[r] = total;
  }
  finish_rows(t, row, 0, t.block_m, column, sums);
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
  const typename L::Mask depth = L::first_lanes(static_cast<int>(bk < L::kLanes ? bk : L::kLanes));
  const typename L::Mask height = L::first_lanes(static_cast<int>(bm < L::kLanes ? bm : L::kLanes));
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
  const bool plain = is_plain(t);
  int64_t begin = t.crow[0];
  for (int64_t row = 0; row < t.rows; ++row) {
    const int64_t end = t.crow[row + 1];
    for (int64_t column = 0; column < t.n; ++column) {
      const T* const b = static_cast<const T*>(t.b) + column * t.ldb;
      Vec sum[kBlocks][kVectors];
      clear<L>(sum);
      Walk<L, kInOrder> walk(t, begin, 0, bk);
      const auto add = [&](int i) SPARSE_AUTOTUNE_TARGET __attribute__((always_inline)) {
        const T* a;
        int64_t b_at;
        walk.next(&a, &b_at);
        const Vec x = L::load_part(b + b_at, depth);
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) {
          sum[i][v] = L::multiply_add(sum[i][v], load_vector<L, kVectors>(a, v, rest),
                                      L::permute(x, pick[v]));
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
      for (int i = 1; i < kBlocks; ++i) add_to<L>(sum[0], sum[i]);
      if constexpr (kVectors == 1) {
        Vec total = L::permute(sum[0][0], meet[0]);
        for (int64_t k = 1; k < bk; ++k) total = L::add(total, L::permute(sum[0][0], meet[k]));
        if (plain) {
          L::store_part(static_cast<T*>(t.out) + row * bm + column * t.out_column, total, height);
          continue;
        }
        T sums[L::kLanes];
        L::store(sums, total);
        finish_rows(t, row, 0, bm, column, sums);
        continue;
      }
      T parts[kVectors * L::kLanes], sums[kVectors * L::kLanes];
      store_all<L>(parts, sum[0]);
      finish_elements(t, row, column, parts, sums);
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
  const bool plain = is_plain(t);
  int64_t begin = t.crow[0];
  for (int64_t row = 0; row < t.rows; ++row) {
    const int64_t end = t.crow[row + 1];
    for (int64_t column = 0; column < t.n; ++column) {
      const T* const b = static_cast<const T*>(t.b) + column * t.ldb;
      const T* a = static_cast<const T*>(t.values) + begin * elements;
      Vec sum = L::zero();
      const auto add = [&](int64_t block, int64_t count, typename L::Mask lanes)
          SPARSE_AUTOTUNE_TARGET __attribute__((always_inline)) {
        __builtin_prefetch(reinterpret_cast<const char*>(a) + 1024);
        const typename L::Offsets columns =
            L::load_columns(t.columns, block, static_cast<int>(count), lane_block, lanes);
        const typename L::Offsets at = bk == 1 ? columns : columns + columns + lane_k;
        sum = L::multiply_add(sum, L::load_part(a, lanes), L::gather(b, at, lanes));
        a += L::kLanes;
      };
      int64_t block = begin;
      for (; block + together <= end; block += together) add(block, together, all);
      if (block < end) {
        add(block, end - block, L::first_lanes(static_cast<int>((end - block) * elements)));
      }
      if (elements == 1) {
        T total = L::sum(sum);
        if (plain) {
          static_cast<T*>(t.out)[row + column * t.out_column] = total;
        } else {
          finish_rows(t, row, 0, 1, column, &total);
        }
        continue;
      }
      for (int i = 0; i < fold_count; ++i) sum = L::add(sum, L::permute(sum, folds[i]));
      T sums[L::kLanes];
      L::store(sums, sum);
      if (bk == 2) sums[0] += sums[1];
      finish_rows(t, row, 0, bm, column, sums);
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
  const int64_t begin = t.crow[row];
  Walk<L, kInOrder> walk(t, begin, first, t.block_k);
  const int64_t end = t.crow[row + 1];
  const T* const b = static_cast<const T*>(t.b) + column * t.ldb;
  const int64_t bk = t.block_k, whole = bk / L::kLanes * L::kLanes;
  const typename L::Mask rest = L::first_lanes(static_cast<int>(bk - whole));
  Vec sum[kRows];
  clear<L>(sum);
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
  finish_rows(t, row, first, kRows, column, sums);
}

// Large blocks of A^T, columns of a block one behind the other: lanes along kVectors vectors of
// rows, the last of `lanes`.
template <class L, int kVectors>
SPARSE_AUTOTUNE_TARGET void multiply_deep_columns(const RowsTask& t, int64_t row, int64_t first,
                                                  int64_t count, int64_t column) {
  using T = typename L::T;
  using Vec = typename L::Vec;
  const int64_t begin = t.crow[row];
  Walk<L, false> walk(t, begin, first, t.block_k);
  const int64_t end = t.crow[row + 1];
  const T* const b = static_cast<const T*>(t.b) + column * t.ldb;
  const typename L::Mask rest =
      L::first_lanes(static_cast<int>(count - (kVectors - 1) * L::kLanes));
  Vec sum[kVectors];
  clear<L>(sum);
  for (int64_t block = begin; block < end; ++block) {
    const T* a;
    int64_t b_at;
    walk.next(&a, &b_at);
    const T* const x = b + b_at;
    for (int64_t k = 0; k < t.block_k; ++k, a += t.block_m) {
      const Vec at = L::broadcast(x + k);
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) {
        sum[v] = L::multiply_add(sum[v], load_vector<L, kVectors>(a, v, rest), at);
      }
    }
  }
  T sums[kVectors * L::kLanes];
  store_all<L>(sums, sum);
  finish_rows(t, row, first, count, column, sums);
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
          static constexpr void (*kByVectors[])(const RowsTask&, int64_t, int64_t, int64_t,
                                                int64_t) = {
              multiply_deep_columns<L, 1>, multiply_deep_columns<L, 2>, multiply_deep_columns<L, 3>,
              multiply_deep_columns<L, 4>};
          kByVectors[(count - 1) / L::kLanes](t, row, r, count, column);
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

template <class L, bool kInOrder, int... kBelow>
SPARSE_AUTOTUNE_TARGET void multiply_elements_in(const RowsTask& t, int64_t vectors,
                                                 std::integer_sequence<int, kBelow...>) {
  (..., (vectors == kBelow + 1 ? multiply_elements<L, kBelow + 1, kInOrder>(t) : void()));
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
  multiply_elements_in<L, kInOrder>(t, vectors, std::make_integer_sequence<int, L::kVectors>());
}

template <class L>
SPARSE_AUTOTUNE_TARGET void multiply_vectors(const RowsTask& t) {
  (t.positions.data == nullptr ? multiply_vectors_in<L, true> : multiply_vectors_in<L, false>)(t);
}

}  // namespace
}  // namespace sparse_autotune::cpu_rows
