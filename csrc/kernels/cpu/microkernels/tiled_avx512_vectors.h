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
  static SPARSE_AUTOTUNE_INLINE void transpose(Vec (&x)[16]) {
    Vec y[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i += 2) {
      y[i] = _mm512_unpacklo_ps(x[i], x[i + 1]);
      y[i + 1] = _mm512_unpackhi_ps(x[i], x[i + 1]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; i += 4) {  // x[i + q]: column q of each 4 x 4 square
#pragma GCC unroll 16
      for (int q = 0; q < 2; ++q) {
        const __m512d low = _mm512_castps_pd(y[i + q]), high = _mm512_castps_pd(y[i + q + 2]);
        x[i + 2 * q] = _mm512_castpd_ps(_mm512_unpacklo_pd(low, high));
        x[i + 2 * q + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low, high));
      }
    }
#pragma GCC unroll 16
    for (int q = 0; q < 4; ++q) {  // then the 4 x 4 squares themselves
      const Vec even_low = _mm512_shuffle_f32x4(x[q], x[4 + q], 0x88);
      const Vec odd_low = _mm512_shuffle_f32x4(x[q], x[4 + q], 0xdd);
      const Vec even_high = _mm512_shuffle_f32x4(x[8 + q], x[12 + q], 0x88);
      const Vec odd_high = _mm512_shuffle_f32x4(x[8 + q], x[12 + q], 0xdd);
      y[q] = _mm512_shuffle_f32x4(even_low, even_high, 0x88);
      y[8 + q] = _mm512_shuffle_f32x4(even_low, even_high, 0xdd);
      y[4 + q] = _mm512_shuffle_f32x4(odd_low, odd_high, 0x88);
      y[12 + q] = _mm512_shuffle_f32x4(odd_low, odd_high, 0xdd);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) x[i] = y[i];
  }
};

struct Double8Lanes : Lanes<Doubles8> {
  static constexpr int kRows = 8, kVectors = 3, kTurnedRows = 14;
  static SPARSE_AUTOTUNE_INLINE void transpose(Vec (&x)[8]) {
    Vec y[8];
#pragma GCC unroll 16
    for (int i = 0; i < 8; i += 2) {
      y[i] = _mm512_unpacklo_pd(x[i], x[i + 1]);
      y[i + 1] = _mm512_unpackhi_pd(x[i], x[i + 1]);
    }
#pragma GCC unroll 16
    for (int q = 0; q < 2; ++q) {
      const Vec even_low = _mm512_shuffle_f64x2(y[q], y[2 + q], 0x88);
      const Vec odd_low = _mm512_shuffle_f64x2(y[q], y[2 + q], 0xdd);
      const Vec even_high = _mm512_shuffle_f64x2(y[4 + q], y[6 + q], 0x88);
      const Vec odd_high = _mm512_shuffle_f64x2(y[4 + q], y[6 + q], 0xdd);
      x[q] = _mm512_shuffle_f64x2(even_low, even_high, 0x88);
      x[4 + q] = _mm512_shuffle_f64x2(even_low, even_high, 0xdd);
      x[2 + q] = _mm512_shuffle_f64x2(odd_low, odd_high, 0x88);
      x[6 + q] = _mm512_shuffle_f64x2(odd_low, odd_high, 0xdd);
    }
  }
};

}  // namespace
}  // namespace sparse_autotune::cpu_tiled
