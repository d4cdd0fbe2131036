// attention_tiled's steps for AVX-512: 16 lanes, tiles of 12 lines x 2 vectors in registers.
#if defined(__x86_64__)
#include "kernels/cpu/microkernels/vectors_avx512.h"

#include "kernels/cpu/attention/attention_steps_code.h"

namespace sparse_autotune::cpu_attention {
namespace {

struct Lanes16 : Floats16 {
  static constexpr int kMostLines = 12;
  static SPARSE_AUTOTUNE_INLINE Vec multiply(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
  static SPARSE_AUTOTUNE_INLINE Vec subtract(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
  // Where either is NaN, the first.
  static SPARSE_AUTOTUNE_INLINE Vec max(Vec a, Vec b) { return _mm512_max_ps(b, a); }
  static SPARSE_AUTOTUNE_INLINE Vec exp2(Vec x) {
    const Vec whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    // Minus infinity has no fraction: it would be NaN.
    const Vec bounded = _mm512_max_ps(splat(-200.0f), whole);
    const Vec fraction = _mm512_sub_ps(_mm512_max_ps(splat(-200.0f), x), bounded);
    return _mm512_scalef_ps(exp2_of_fraction<Lanes16>(fraction), bounded);
  }
};

}  // namespace

const Steps* avx512_steps() { return &kStepsOf<Lanes16>; }

}  // namespace sparse_autotune::cpu_attention

#endif
