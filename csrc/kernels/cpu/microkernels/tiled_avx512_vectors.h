// Vectors of AVX-512 for cpu_tiled's micro-kernels, which it includes: 16 floats or 8 doubles.
#pragma once

#include "kernels/cpu/microkernels/vectors_avx512.h"

#include "kernels/cpu/microkernels/tiled_microkernel.h"

namespace sparse_autotune::cpu_tiled {
namespace {

// A half type that `Widened` widens and narrows.
template <class Widened>
struct StoredWords {
  using Type = uint16_t;
  static SPARSE_AUTOTUNE_INLINE __m512 load(const uint16_t* p) {
    return Widened::widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static SPARSE_AUTOTUNE_INLINE __m512 load_part(const uint16_t* p, int n) {
    return Widened::widen(_mm256_maskz_loadu_epi16(static_cast<__mmask16>((1u << n) - 1), p));
  }
  static SPARSE_AUTOTUNE_INLINE void store(uint16_t* p, __m512 x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), Widened::narrow(x));
  }
  static SPARSE_AUTOTUNE_INLINE void store_part(uint16_t* p, __m512 x, int n) {
    _mm256_mask_storeu_epi16(p, static_cast<__mmask16>((1u << n) - 1), Widened::narrow(x));
  }
};

struct StoredHalf : StoredWords<StoredHalf> {
  static constexpr DType kDType = DType::kFloat16;
  static SPARSE_AUTOTUNE_INLINE __m512 widen(__m256i x) { return _mm512_cvtph_ps(x); }
  static SPARSE_AUTOTUNE_INLINE __m256i narrow(__m512 x) {
    return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
};

struct StoredBFloat16 : StoredWords<StoredBFloat16> {
  static constexpr DType kDType = DType::kBFloat16;
  static SPARSE_AUTOTUNE_INLINE __m512 widen(__m256i x) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
  }
  // Round to nearest even; a NaN keeps its upper bits and becomes quiet.
  static SPARSE_AUTOTUNE_INLINE __m256i narrow(__m512 x) {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded =
        _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    const __m512i result = _mm512_mask_mov_epi32(rounded, nan, quiet);
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(result, 16));
  }
};

struct Float16Lanes : Lanes<Floats16> {
  static constexpr int kRows = 8, kVectors = 3, kTurnedRows = 14;
};

struct Double8Lanes : Lanes<Doubles8> {
  static constexpr int kRows = 8, kVectors = 3, kTurnedRows = 14;
};

}  // namespace
}  // namespace sparse_autotune::cpu_tiled
