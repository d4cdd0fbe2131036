// The bodies of cpu_rows' micro-kernels, written once over a vector type and compiled once per
// instruction-set level: a level's file includes its vectors_*.h and this; everything below is
// private to it. No std template is used inside.
//
// A vector type L is one of vectors_*.h as RowLanes with kVectors (of a block's elements at most),
// kTile (sums that leave registers for what is loaded), kMost (vectors of a tile), sum, and with
// load_columns and gather.
#pragma once

#include "kernels/cpu/microkernels/rows_columns.h"
#include "kernels/cpu/microkernels/rows_vectors.h"

namespace sparse_autotune::cpu_rows {
namespace {

// Besides with a number for each lane: Index, of a lane, or Offsets.
template <class Vector>
struct RowLanes : Vector {
  using Vec = typename Vector::Vec;
  using Index = decltype(Vec{} == Vec{});
  typedef int32_t Offsets __attribute__((vector_size(4 * Vector::kLanes)));
  static SPARSE_AUTOTUNE_INLINE Offsets offsets(const int32_t* p) {
    Offsets x;
    __builtin_memcpy(&x, p, sizeof(x));
    return x;
  }
  static SPARSE_AUTOTUNE_INLINE Index index(const int32_t* lanes) {
    return __builtin_convertvector(offsets(lanes), Index);
  }
  static SPARSE_AUTOTUNE_INLINE Vec permute(Vec x, Index lanes) {
    return __builtin_shuffle(x, lanes);
  }
};

// sampled_rows: blocks of a sampled product, lanes along a block's elements.

// For each term the elements of C that a block row's elements are multiplied with, as those lie.
template <class T>
__attribute__((noinline)) void expand_row(const SampledTask& t, int64_t row, int64_t stride) {
  const T* const first = static_cast<const T*>(t.c) + row * t.block_m * t.c_row;
  T* to = static_cast<T*>(t.expanded);
  for (int64_t matrix = 0; matrix < t.batch; ++matrix) {
    for (int64_t column = 0; column < t.n; ++column, to += stride) {
      const T* from = first + matrix * t.c_batch + column * t.c_column;
      T* element = to;
      for (int64_t r = 0; r < t.block_m; ++r, from += t.c_row) {
        for (int64_t k = 0; k < t.block_k; ++k) *element++ = *from;
      }
    }
  }
}

template <class L, int kVectors>
SPARSE_AUTOTUNE_TARGET void sample_elements(const SampledTask& t) {
  using T = typename L::T;
  using Vec = typename L::Vec;
  // So many blocks at a time that a sum need not wait for the term before.
  constexpr int kBlocks = kVectors <= 2 ? 4 : kVectors <= 4 ? 2 : 1;
  const int64_t bk = t.block_k, elements = t.block_m * bk, terms = t.n * t.batch;
  typename L::Index pick[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    int32_t k[L::kLanes];
    for (int i = 0; i < L::kLanes; ++i) k[i] = static_cast<int32_t>((v * L::kLanes + i) % bk);
    pick[v] = L::index(k);
  }
  const typename L::Mask rest =
      L::first_lanes(static_cast<int>(elements - (kVectors - 1) * L::kLanes));
  const typename L::Mask depth = L::first_lanes(static_cast<int>(bk < L::kLanes ? bk : L::kLanes));
  const T* const expanded = static_cast<const T*>(t.expanded);
  const T* const b = static_cast<const T*>(t.b);
  T* const values = static_cast<T*>(t.values);
  int64_t block = t.begin;
  for (int64_t row = t.row; block < t.end; ++row) {
    const int64_t row_end = t.crow[row + 1];
    const int64_t end = row_end < t.end ? row_end : t.end;
    if (block < end) expand_row<T>(t, row, kVectors * L::kLanes);
    while (block < end) {
      const int64_t count = end - block < kBlocks ? end - block : kBlocks;
      const T* x[kBlocks];
      Vec sum[kBlocks][kVectors];
#pragma GCC unroll 16
      for (int i = 0; i < kBlocks; ++i) {
        // Of the last block again where there are no more.
        const int64_t at = block + (i < count ? i : count - 1);
        x[i] = b + t.columns[at] * terms * bk;
      }
      clear<L>(sum);
      const T* left = expanded;
      for (int64_t term = 0; term < terms; ++term, left += kVectors * L::kLanes) {
        Vec right[kBlocks];
#pragma GCC unroll 16
        for (int i = 0; i < kBlocks; ++i) right[i] = L::load_part(x[i] + term * bk, depth);
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) {
          const Vec line = load_vector<L, kVectors>(left, v, rest);
#pragma GCC unroll 16
          for (int i = 0; i < kBlocks; ++i) {
            sum[i][v] = L::multiply_add(sum[i][v], line, L::permute(right[i], pick[v]));
          }
        }
      }
#pragma GCC unroll 16
      for (int i = 0; i < kBlocks; ++i) {
        if (i >= count) break;
        store_part<L>(values + (block + i) * elements, sum[i], rest);
      }
      block += count;
    }
  }
}

template <class L, int... kBelow>
SPARSE_AUTOTUNE_TARGET void sample_with(const SampledTask& t,
                                        std::integer_sequence<int, kBelow...>) {
  const int64_t vectors = (t.block_m * t.block_k + L::kLanes - 1) / L::kLanes;
  (..., (vectors == kBelow + 1 ? sample_elements<L, kBelow + 1>(t) : void()));
}

template <class L>
SPARSE_AUTOTUNE_TARGET void sample(const SampledTask& t) {
  sample_with<L>(t, std::make_integer_sequence<int, L::kVectors>());
}

template <class L>
constexpr RowKernels kKernelsOf{L::kLanes, L::kVectors* L::kLanes, sample<L>, multiply_vectors<L>,
                                multiply_columns<L>};

template <class Floats, class Doubles>
const RowKernels* row_kernels_of(DType dtype) {
  if (dtype == DType::kFloat32) return &kKernelsOf<Floats>;
  if (dtype == DType::kFloat64) return &kKernelsOf<Doubles>;
  return nullptr;
}

}  // namespace
}  // namespace sparse_autotune::cpu_rows
