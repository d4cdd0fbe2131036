// Rows of vectors in registers, of any vector type V of vectors_*.h: loops that are written out.
#pragma once

#include <cstdint>
#include <utility>

#include "kernels/cpu/microkernels/vectors.h"

namespace sparse_autotune {
namespace {

template <class V, int kVectors>
SPARSE_AUTOTUNE_INLINE void clear(typename V::Vec (&x)[kVectors]) {
#pragma GCC unroll 16
  for (int v = 0; v < kVectors; ++v) x[v] = V::zero();
}
template <class V, int kRows, int kVectors>
SPARSE_AUTOTUNE_INLINE void clear(typename V::Vec (&x)[kRows][kVectors]) {
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) clear<V>(x[r]);
}

template <class V, int kVectors>
SPARSE_AUTOTUNE_INLINE void add_to(typename V::Vec (&sum)[kVectors],
                                   const typename V::Vec (&x)[kVectors]) {
#pragma GCC unroll 16
  for (int v = 0; v < kVectors; ++v) sum[v] = V::add(sum[v], x[v]);
}
template <class V, int kRows, int kVectors>
SPARSE_AUTOTUNE_INLINE void add_to(typename V::Vec (&sum)[kRows][kVectors],
                                   const typename V::Vec (&x)[kRows][kVectors]) {
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) add_to<V>(sum[r], x[r]);
}

template <class V, int kVectors>
SPARSE_AUTOTUNE_INLINE void store_all(typename V::T* to, const typename V::Vec (&x)[kVectors]) {
#pragma GCC unroll 16
  for (int v = 0; v < kVectors; ++v) V::store(to + v * V::kLanes, x[v]);
}
template <class V, int kRows, int kVectors>
SPARSE_AUTOTUNE_INLINE void store_all(typename V::T* to, int64_t stride,
                                      const typename V::Vec (&x)[kRows][kVectors]) {
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) store_all<V>(to + r * stride, x[r]);
}
// Of the last vector only the lanes of `rest`.
template <class V, int kVectors>
SPARSE_AUTOTUNE_INLINE void store_part(typename V::T* to, const typename V::Vec (&x)[kVectors],
                                       typename V::Mask rest) {
#pragma GCC unroll 16
  for (int v = 0; v + 1 < kVectors; ++v) V::store(to + v * V::kLanes, x[v]);
  V::store_part(to + (kVectors - 1) * V::kLanes, x[kVectors - 1], rest);
}
// Vector v of kVectors, likewise.
template <class V, int kVectors>
SPARSE_AUTOTUNE_INLINE typename V::Vec load_vector(const typename V::T* from, int v,
                                                   typename V::Mask rest) {
  from += v * V::kLanes;
  return v + 1 < kVectors ? V::load(from) : V::load_part(from, rest);
}

}  // namespace
}  // namespace sparse_autotune
