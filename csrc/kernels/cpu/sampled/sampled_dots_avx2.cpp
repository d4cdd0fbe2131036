// sampled_dots for AVX2 with FMA: 8 floats or 4 doubles a vector, tiles of up to 2 x 4 or 1 x 8.
#if defined(__x86_64__)
#include "kernels/cpu/microkernels/vectors_avx2.h"

#include "kernels/cpu/sampled/dots_microkernel.h"

namespace sparse_autotune::cpu_dots {
namespace {

struct Float8Lanes : Floats8 {
  static constexpr int kRows = 2, kColumns = 4;
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

struct Double4Lanes : Doubles4 {
  static constexpr int kRows = 2, kColumns = 4;
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

#endif
