// sampled_dots for AVX-512 (F): 16 floats or 8 doubles a vector, tiles of up to 4 x 4 or 2 x 8.
#if defined(__x86_64__)
// GCC 12's own headers trip these (its bug 105593): they start "undefined" vectors from themselves.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>

#define SPARSE_AUTOTUNE_TARGET \
  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")))
#include "kernels/cpu/sampled/dots_microkernel.h"

namespace sparse_autotune::cpu_dots {
namespace {

// For each lane of a folded vector the lanes, of both vectors together, that it is the sum of.
template <class Number, int kLanes, int kGroup>
struct Folded {
  alignas(64) Number first[kLanes], second[kLanes];
  constexpr Folded() : first{}, second{} {
    for (int i = 0; i < kLanes; ++i) {
      constexpr int kHalf = kGroup / 2;
      const int vector = i / (kLanes / 2), within = i % (kLanes / 2);
      first[i] = vector * kLanes + within / kHalf * kGroup + within % kHalf;
      second[i] = first[i] + kHalf;
    }
  }
};
template <class Number, int kLanes, int kGroup>
constexpr Folded<Number, kLanes, kGroup> kFolded;

struct Float16Lanes {
  using T = float;
  using Vec = __m512;
  static constexpr int kLanes = 16, kRows = 4, kColumns = 8;
  static SPARSE_AUTOTUNE_INLINE Vec zero() { return _mm512_setzero_ps(); }
  static SPARSE_AUTOTUNE_INLINE Vec load(const float* p) { return _mm512_loadu_ps(p); }
  static SPARSE_AUTOTUNE_INLINE void store(float* p, Vec x) { _mm512_storeu_ps(p, x); }
  static SPARSE_AUTOTUNE_INLINE Vec multiply_add(Vec sum, Vec a, Vec b) {
    return _mm512_fmadd_ps(a, b, sum);
  }
  template <int kGroup>
  static SPARSE_AUTOTUNE_INLINE Vec fold(Vec a, Vec b) {
    const auto& lanes = kFolded<int32_t, kLanes, kGroup>;
    return _mm512_add_ps(_mm512_permutex2var_ps(a, _mm512_load_si512(lanes.first), b),
                         _mm512_permutex2var_ps(a, _mm512_load_si512(lanes.second), b));
  }
  static SPARSE_AUTOTUNE_INLINE Vec settle(Vec x) { return x; }
};

struct Double8Lanes {
  using T = double;
  using Vec = __m512d;
  static constexpr int kLanes = 8, kRows = 4, kColumns = 8;
  static SPARSE_AUTOTUNE_INLINE Vec zero() { return _mm512_setzero_pd(); }
  static SPARSE_AUTOTUNE_INLINE Vec load(const double* p) { return _mm512_loadu_pd(p); }
  static SPARSE_AUTOTUNE_INLINE void store(double* p, Vec x) { _mm512_storeu_pd(p, x); }
  static SPARSE_AUTOTUNE_INLINE Vec multiply_add(Vec sum, Vec a, Vec b) {
    return _mm512_fmadd_pd(a, b, sum);
  }
  template <int kGroup>
  static SPARSE_AUTOTUNE_INLINE Vec fold(Vec a, Vec b) {
    const auto& lanes = kFolded<int64_t, kLanes, kGroup>;
    return _mm512_add_pd(_mm512_permutex2var_pd(a, _mm512_load_si512(lanes.first), b),
                         _mm512_permutex2var_pd(a, _mm512_load_si512(lanes.second), b));
  }
  static SPARSE_AUTOTUNE_INLINE Vec settle(Vec x) { return x; }
};

}  // namespace

const DotsKernels* avx512_dots_kernels(DType dtype) {
  return dots_kernels_of<Float16Lanes, Double8Lanes>(dtype);
}

}  // namespace sparse_autotune::cpu_dots

#else
#include "kernels/cpu/sampled/sampled_dots.h"

namespace sparse_autotune::cpu_dots {
const DotsKernels* avx512_dots_kernels(DType) { return nullptr; }
}  // namespace sparse_autotune::cpu_dots
#endif
