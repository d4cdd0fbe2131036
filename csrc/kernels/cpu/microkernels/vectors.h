// What all micro-kernels do with a vector, of any instruction set. A level's vectors_*.h defines
// SPARSE_AUTOTUNE_TARGET (a function attribute: a per-file flag would leak wide instructions into
// shared templates) and includes this; what functions it is given to are private to a file.
#pragma once

#ifndef SPARSE_AUTOTUNE_TARGET
#error "define SPARSE_AUTOTUNE_TARGET before including this file"
#endif

#include <cstdint>
#include <utility>

#define SPARSE_AUTOTUNE_INLINE SPARSE_AUTOTUNE_TARGET inline __attribute__((always_inline))

// Members of a vector type of LANES numbers: intrinsics whose names begin with P and end with S.
#define SPARSE_AUTOTUNE_VECTOR_MEMBERS(NUMBER, LANES, VECTOR, P, S)                 \
  using T = NUMBER;                                                                 \
  using Vec = VECTOR;                                                               \
  static constexpr int kLanes = LANES;                                              \
  static SPARSE_AUTOTUNE_INLINE Vec zero() { return P##_setzero_##S(); }            \
  static SPARSE_AUTOTUNE_INLINE Vec splat(T x) { return P##_set1_##S(x); }          \
  static SPARSE_AUTOTUNE_INLINE Vec load(const T* p) { return P##_loadu_##S(p); }   \
  static SPARSE_AUTOTUNE_INLINE void store(T* p, Vec x) { P##_storeu_##S(p, x); }   \
  static SPARSE_AUTOTUNE_INLINE void stream(T* p, Vec x) { P##_stream_##S(p, x); }  \
  static SPARSE_AUTOTUNE_INLINE Vec add(Vec a, Vec b) { return P##_add_##S(a, b); } \
  static SPARSE_AUTOTUNE_INLINE Vec multiply_add(Vec sum, Vec a, Vec b) {           \
    return P##_fmadd_##S(a, b, sum);                                                \
  }

// Rows of vectors in registers, of any vector type V: loops that are written out.
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
