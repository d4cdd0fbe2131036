// Vectors of AVX-512 (F, BW, DQ, VL): of 512 bits, and narrower ones. A mask has a bit a lane.
#pragma once

// GCC 12's own headers trip these (its bug 105593): they start "undefined" vectors from themselves.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>

#ifndef SPARSE_AUTOTUNE_TARGET
#define SPARSE_AUTOTUNE_TARGET \
  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")))
#endif
#include "kernels/cpu/microkernels/vectors.h"

namespace sparse_autotune {
namespace {

#define SPARSE_AUTOTUNE_MASKED_VECTOR(NAME, NUMBER, LANES, VECTOR, MASK, P, S)           \
  struct NAME {                                                                          \
    SPARSE_AUTOTUNE_VECTOR_MEMBERS(NUMBER, LANES, VECTOR, P, S)                          \
    using Mask = MASK;                                                                   \
    static SPARSE_AUTOTUNE_INLINE Mask first_lanes(int n) {                              \
      return static_cast<Mask>((1u << n) - 1);                                           \
    }                                                                                    \
    static SPARSE_AUTOTUNE_INLINE Vec broadcast(const T* p) { return P##_set1_##S(*p); } \
    static SPARSE_AUTOTUNE_INLINE Vec load_part(const T* p, Mask m) {                    \
      return P##_maskz_loadu_##S(m, p);                                                  \
    }                                                                                    \
    static SPARSE_AUTOTUNE_INLINE void store_part(T* p, Vec x, Mask m) {                 \
      P##_mask_storeu_##S(p, m, x);                                                      \
    }                                                                                    \
  };

SPARSE_AUTOTUNE_MASKED_VECTOR(Floats16, float, 16, __m512, __mmask16, _mm512, ps)
SPARSE_AUTOTUNE_MASKED_VECTOR(Floats8, float, 8, __m256, __mmask8, _mm256, ps)
SPARSE_AUTOTUNE_MASKED_VECTOR(Floats4, float, 4, __m128, __mmask8, _mm, ps)
SPARSE_AUTOTUNE_MASKED_VECTOR(Doubles8, double, 8, __m512d, __mmask8, _mm512, pd)
SPARSE_AUTOTUNE_MASKED_VECTOR(Doubles4, double, 4, __m256d, __mmask8, _mm256, pd)
SPARSE_AUTOTUNE_MASKED_VECTOR(Doubles2, double, 2, __m128d, __mmask8, _mm, pd)

}  // namespace
}  // namespace sparse_autotune
