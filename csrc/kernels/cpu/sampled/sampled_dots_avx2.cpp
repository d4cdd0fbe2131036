// sampled_dots for AVX2 with FMA: 8 floats or 4 doubles a vector, tiles of up to 2 x 4 or 1 x 8.
#if defined(__x86_64__)
#include <immintrin.h>

#define SPARSE_AUTOTUNE_TARGET __attribute__((target("avx2,fma")))
#include "kernels/cpu/sampled/dots_microkernel.h"

namespace sparse_autotune::cpu_dots {
namespace {

struct Float8Lanes {
  using T = float;
  using Vec = __m256;
  static constexpr int kLanes = 8, kRows = 2, kColumns = 4;
  static SPARSE_AUTOTUNE_INLINE Vec zero() { return _mm256_setzero_ps(); }
  static SPARSE_AUTOTUNE_INLINE Vec load(const float* p) { return _mm256_loadu_ps(p); }
  static SPARSE_AUTOTUNE_INLINE void store(float* p, Vec x) { _mm256_storeu_ps(p, x); }
  static SPARSE_AUTOTUNE_INLINE Vec multiply_add(Vec sum, Vec a, Vec b) {
    return _mm256_fmadd_ps(a, b, sum);
  }
  // Behind the first fold each half of a vector has a number; those that follow add neighbours
  // within the halves, so that numbers come to lie in the order 0 2 4 6 1 3 5 7.
  template <int kGroup>
  static SPARSE_AUTOTUNE_INLINE Vec fold(Vec a, Vec b) {
    if constexpr (kGroup < kLanes) return _mm256_hadd_ps(a, b);
    return _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
  }
  static SPARSE_AUTOTUNE_INLINE Vec settle(Vec x) {
    return _mm256_permutevar8x32_ps(x, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  }
};

struct Double4Lanes {
  using T = double;
  using Vec = __m256d;
  static constexpr int kLanes = 4, kRows = 2, kColumns = 4;
  static SPARSE_AUTOTUNE_INLINE Vec zero() { return _mm256_setzero_pd(); }
  static SPARSE_AUTOTUNE_INLINE Vec load(const double* p) { return _mm256_loadu_pd(p); }
  static SPARSE_AUTOTUNE_INLINE void store(double* p, Vec x) { _mm256_storeu_pd(p, x); }
  static SPARSE_AUTOTUNE_INLINE Vec multiply_add(Vec sum, Vec a, Vec b) {
    return _mm256_fmadd_pd(a, b, sum);
  }
  template <int kGroup>  // numbers come to lie in the order 0 2 1 3
  static SPARSE_AUTOTUNE_INLINE Vec fold(Vec a, Vec b) {
    if constexpr (kGroup < kLanes) return _mm256_hadd_pd(a, b);
    return _mm256_add_pd(_mm256_permute2f128_pd(a, b, 0x20), _mm256_permute2f128_pd(a, b, 0x31));
  }
  static SPARSE_AUTOTUNE_INLINE Vec settle(Vec x) { return _mm256_permute4x64_pd(x, 0xD8); }
};

}  // namespace

const DotsKernels* avx2_dots_kernels(DType dtype) {
  return dots_kernels_of<Float8Lanes, Double4Lanes>(dtype);
}

}  // namespace sparse_autotune::cpu_dots

#else
#include "kernels/cpu/sampled/sampled_dots.h"

namespace sparse_autotune::cpu_dots {
const DotsKernels* avx2_dots_kernels(DType) { return nullptr; }
}  // namespace sparse_autotune::cpu_dots
#endif
