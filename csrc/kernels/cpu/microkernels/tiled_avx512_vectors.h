// Vectors of AVX-512 for cpu_tiled's micro-kernels, which it includes: 16 floats or 8 doubles.
#pragma once

#include "kernels/cpu/microkernels/vectors_avx512.h"

#include "kernels/cpu/microkernels/tiled_microkernel.h"

namespace sparse_autotune::cpu_tiled {
namespace {

struct Words16 {
  using Packed = __m256i;
  static SPARSE_AUTOTUNE_INLINE Packed load_part(const uint16_t* p, int n) {
    return _mm256_maskz_loadu_epi16(static_cast<__mmask16>((1u << n) - 1), p);
  }
  static SPARSE_AUTOTUNE_INLINE void store_part(uint16_t* p, Packed x, int n) {
    _mm256_mask_storeu_epi16(p, static_cast<__mmask16>((1u << n) - 1), x);
  }
  static SPARSE_AUTOTUNE_INLINE __m512 widen(Packed x) { return _mm512_cvtph_ps(x); }
  static SPARSE_AUTOTUNE_INLINE Packed narrow(__m512 x) {
    return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  static SPARSE_AUTOTUNE_INLINE __m512 lift(Packed x) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
  }
  template <class Bits>
  static SPARSE_AUTOTUNE_INLINE Packed drop(Bits bits) {
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(reinterpret_cast<__m512i>(bits), 16));
  }
};

struct Float16Lanes : Lanes<Floats16> {
  static constexpr int kRows = 8, kVectors = 3, kSums = 24, kTurnedRows = 14;
};

struct Double8Lanes : Lanes<Doubles8> {
  static constexpr int kRows = 8, kVectors = 3, kSums = 24, kTurnedRows = 14;
};

}  // namespace
}  // namespace sparse_autotune::cpu_tiled
