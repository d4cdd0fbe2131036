// cpu_tiled for AVX2 with FMA and F16C: 8 floats or 4 doubles a vector, tiles of 6 rows x 2
// vectors: 12 accumulators, 2 rows of B and one broadcast fill 15 of 16 registers. Half types are
// widened to fp32, whose sums they need anyway.
#if defined(__x86_64__)
#include "kernels/cpu/microkernels/vectors_avx2.h"

#include "kernels/cpu/microkernels/tiled_microkernel.h"

namespace sparse_autotune::cpu_tiled {
namespace {

// AVX2 cannot mask 16-bit elements: a part goes through eight of them on the stack.
SPARSE_AUTOTUNE_INLINE __m128i load_words(const uint16_t* p, int n) {
  alignas(16) uint16_t words[8] = {};
  for (int i = 0; i < n; ++i) words[i] = p[i];
  return _mm_load_si128(reinterpret_cast<const __m128i*>(words));
}
SPARSE_AUTOTUNE_INLINE void store_words(uint16_t* p, __m128i x, int n) {
  alignas(16) uint16_t words[8];
  _mm_store_si128(reinterpret_cast<__m128i*>(words), x);
  for (int i = 0; i < n; ++i) p[i] = words[i];
}

// A half type that `Widened` widens and narrows.
template <class Widened>
struct StoredWords {
  using Type = uint16_t;
  static SPARSE_AUTOTUNE_INLINE __m256 load(const uint16_t* p) {
    return Widened::widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static SPARSE_AUTOTUNE_INLINE __m256 load_part(const uint16_t* p, int n) {
    return Widened::widen(load_words(p, n));
  }
  static SPARSE_AUTOTUNE_INLINE void store(uint16_t* p, __m256 x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), Widened::narrow(x));
  }
  static SPARSE_AUTOTUNE_INLINE void store_part(uint16_t* p, __m256 x, int n) {
    store_words(p, Widened::narrow(x), n);
  }
};

struct StoredHalf : StoredWords<StoredHalf> {
  static constexpr DType kDType = DType::kFloat16;
  static SPARSE_AUTOTUNE_INLINE __m256 widen(__m128i x) { return _mm256_cvtph_ps(x); }
  static SPARSE_AUTOTUNE_INLINE __m128i narrow(__m256 x) {
    return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
};

struct StoredBFloat16 : StoredWords<StoredBFloat16> {
  static constexpr DType kDType = DType::kBFloat16;
  static SPARSE_AUTOTUNE_INLINE __m256 widen(__m128i x) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
  }
  // Round to nearest even; a NaN keeps its upper bits and becomes quiet.
  static SPARSE_AUTOTUNE_INLINE __m128i narrow(__m256 x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded =
        _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    const __m256i result = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
    // Packs within 128-bit halves; the permutation brings their low parts together.
    const __m256i packed = _mm256_packus_epi32(result, result);
    return _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
  }
};

struct Float8Lanes : Lanes<Floats8> {
  static constexpr int kRows = 6, kVectors = 2, kTurnedRows = 6;
};

struct Double4Lanes : Lanes<Doubles4> {
  static constexpr int kRows = 6, kVectors = 2, kTurnedRows = 6;
};

}  // namespace

const Microkernels* avx2_kernels(DType dtype) {
  return kernels_of<Float8Lanes, Double4Lanes, StoredHalf, StoredBFloat16>(dtype);
}

}  // namespace sparse_autotune::cpu_tiled

#endif
