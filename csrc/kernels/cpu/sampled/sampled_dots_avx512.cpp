// sampled_dots for AVX-512 (F): 16 floats or 8 doubles a vector, tiles of up to 4 x 4 or 2 x 8.
#if defined(__x86_64__)
#include "kernels/cpu/microkernels/vectors_avx512.h"

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

struct Float16Lanes : Floats16 {
  static constexpr int kRows = 4, kColumns = 8;
  template <int kGroup>
  static SPARSE_AUTOTUNE_INLINE Vec fold(Vec a, Vec b) {
    const auto& lanes = kFolded<int32_t, kLanes, kGroup>;
    return _mm512_add_ps(_mm512_permutex2var_ps(a, _mm512_load_si512(lanes.first), b),
                         _mm512_permutex2var_ps(a, _mm512_load_si512(lanes.second), b));
  }
  static SPARSE_AUTOTUNE_INLINE Vec settle(Vec x) { return x; }
};

struct Double8Lanes : Doubles8 {
  static constexpr int kRows = 4, kColumns = 8;
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

#endif
