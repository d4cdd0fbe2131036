// What all micro-kernels do with a vector, of any instruction set. A level's vectors_*.h defines
// SPARSE_AUTOTUNE_TARGET (a function attribute: a per-file flag would leak wide instructions into
// shared templates) and includes this; what functions it is given to are private to a file.
#pragma once

#ifndef SPARSE_AUTOTUNE_TARGET
#error "define SPARSE_AUTOTUNE_TARGET before including this file"
#endif
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
