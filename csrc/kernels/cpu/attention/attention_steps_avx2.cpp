// attention_tiled's steps for AVX2 with FMA: 8 lanes, tiles of 6 lines x 2 vectors in registers.
#if defined(__x86_64__)
#include "kernels/cpu/microkernels/vectors_avx2.h"

#include "kernels/cpu/attention/attention_steps_code.h"

namespace sparse_autotune::cpu_attention {
namespace {

struct Lanes8 : Floats8 {
  static constexpr int kMostLines = 6;
  static SPARSE_AUTOTUNE_INLINE Vec multiply(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
  static SPARSE_AUTOTUNE_INLINE Vec subtract(Vec a, Vec b) { return _mm256_sub_ps(a, b); }
  // Where either is NaN, the first.
  static SPARSE_AUTOTUNE_INLINE Vec max(Vec a, Vec b) { return _mm256_max_ps(b, a); }
  static SPARSE_AUTOTUNE_INLINE Vec exp2(Vec x) {
    // Exponent bits of 2^-127 are those of zero.
    const Vec bounded = _mm256_max_ps(splat(-127.0f), x);
    const Vec whole = _mm256_round_ps(bounded, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const Vec y = exp2_of_fraction<Lanes8>(_mm256_sub_ps(bounded, whole));
    const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(whole), _mm256_set1_epi32(127));
    return _mm256_mul_ps(y, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
  }
};

}  // namespace

const Steps* avx2_steps() { return &kStepsOf<Lanes8>; }

}  // namespace sparse_autotune::cpu_attention

#endif
