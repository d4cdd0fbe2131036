// Vectors of AVX2 with FMA: 8 floats or 4 doubles. A mask has the lanes of a vector, all ones or
// all zeros. broadcast() is an instruction of its own: of set1() GCC makes loads that it moves out
// of loops, for which there are too few registers.
#pragma once

#include <immintrin.h>

#define SPARSE_AUTOTUNE_TARGET __attribute__((target("avx2,fma,f16c")))
#include "kernels/cpu/microkernels/vectors.h"

namespace sparse_autotune {
namespace {

struct Floats8 {
  SPARSE_AUTOTUNE_VECTOR_MEMBERS(float, 8, __m256, _mm256, ps)
  using Mask = __m256i;
  static SPARSE_AUTOTUNE_INLINE Vec broadcast(const T* p) { return _mm256_broadcast_ss(p); }
  static SPARSE_AUTOTUNE_INLINE Mask first_lanes(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  static SPARSE_AUTOTUNE_INLINE Vec load_part(const T* p, Mask m) {
    return _mm256_maskload_ps(p, m);
  }
  static SPARSE_AUTOTUNE_INLINE void store_part(T* p, Vec x, Mask m) {
    _mm256_maskstore_ps(p, m, x);
  }
};

struct Doubles4 {
  SPARSE_AUTOTUNE_VECTOR_MEMBERS(double, 4, __m256d, _mm256, pd)
  using Mask = __m256i;
  static SPARSE_AUTOTUNE_INLINE Vec broadcast(const T* p) { return _mm256_broadcast_sd(p); }
  static SPARSE_AUTOTUNE_INLINE Mask first_lanes(int n) {
    return _mm256_cmpgt_epi64(_mm256_set1_epi64x(n), _mm256_setr_epi64x(0, 1, 2, 3));
  }
  static SPARSE_AUTOTUNE_INLINE Vec load_part(const T* p, Mask m) {
    return _mm256_maskload_pd(p, m);
  }
  static SPARSE_AUTOTUNE_INLINE void store_part(T* p, Vec x, Mask m) {
    _mm256_maskstore_pd(p, m, x);
  }
};

}  // namespace
}  // namespace sparse_autotune
