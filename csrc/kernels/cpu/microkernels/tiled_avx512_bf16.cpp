// cpu_tiled for AVX512-BF16: an element is two bf16 neighbours along k, and one instruction adds
// the products of 16 pairs to 16 floats. B is packed into pairs; values are read in place.
#if defined(__x86_64__)
#define SPARSE_AUTOTUNE_TARGET \
  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")))
#include "kernels/cpu/microkernels/tiled_avx512_vectors.h"

namespace sparse_autotune::cpu_tiled {
namespace {

struct PairLanes : Float16Lanes {
  using Element = uint32_t;
  using Operand = __m512i;
  static SPARSE_AUTOTUNE_INLINE Operand load_operand(const uint32_t* p) {
    return _mm512_loadu_si512(p);
  }
  static SPARSE_AUTOTUNE_INLINE Operand broadcast(const uint32_t* p) {
    int pair;
    __builtin_memcpy(&pair, p, sizeof(pair));  // values may be aligned to 2 bytes only
    return _mm512_set1_epi32(pair);
  }
  static SPARSE_AUTOTUNE_INLINE Vec multiply_add(Vec sum, Operand a, Operand b) {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
  }
};

// Rows 2i and 2i + 1 of B, interleaved.
SPARSE_AUTOTUNE_TARGET void pack_pairs_of_rows(const PackTask& t) {
  const uint16_t* from = static_cast<const uint16_t*>(t.b);
  uint32_t* to = static_cast<uint32_t*>(t.strip);
  constexpr int64_t kRowsAhead = 8, kLine = 32;  // as in pack_rows()
  for (int64_t kk = 0; kk < t.depth; kk += 2, from += 2 * t.ldb, to += t.width) {
    for (int64_t i = 0; i < t.columns; i += kLine) {
      __builtin_prefetch(from + kRowsAhead * t.ldb + i);
      __builtin_prefetch(from + (kRowsAhead + 1) * t.ldb + i);
    }
    for (int64_t c = 0; c < t.width; c += 16) {
      const int64_t left = t.columns - c;
      const auto lanes = static_cast<int>(left >= 16 ? 16 : left <= 0 ? 0 : left);
      const __mmask16 mask = Floats16::first_lanes(lanes);
      const __m512i low = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, from + c));
      const __m512i high = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, from + t.ldb + c));
      _mm512_storeu_si512(to + c, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
    }
  }
}

// Columns hold their pairs side by side already: squares of 16 x 16 pairs are turned.
SPARSE_AUTOTUNE_TARGET void pack_pairs_of_columns(const PackTask& t) {
  const uint16_t* from = static_cast<const uint16_t*>(t.b);
  float* to = static_cast<float*>(t.strip);
  const int64_t pairs = t.depth / 2;
  for (int64_t c = 0; c < t.width; c += 16) {
    for (int64_t kk = 0; kk < pairs; kk += 16) {
      const int64_t rows = pairs - kk < 16 ? pairs - kk : 16;
      const __mmask16 mask = static_cast<__mmask16>((1u << rows) - 1);
      __m512 square[16];
      for (int i = 0; i < 16; ++i) {
        square[i] = c + i < t.columns ? _mm512_castsi512_ps(_mm512_maskz_loadu_epi32(
                                            mask, from + (c + i) * t.ldb + 2 * kk))
                                      : _mm512_setzero_ps();
      }
      PairLanes::transpose(square);
      for (int i = 0; i < rows; ++i) _mm512_storeu_ps(to + (kk + i) * t.width + c, square[i]);
    }
  }
}

void pack_pairs(const PackTask& t) {
  (t.layout == Layout::kRowMajor ? pack_pairs_of_rows : pack_pairs_of_columns)(t);
}

constexpr Microkernels pair_kernels() {
  Microkernels k = kernels_for<PairLanes, BFloat16<Words16>>();
  k.pair = 2;
  k.pack = pack_pairs;
  k.widen = nullptr;
  return k;
}

}  // namespace

const Microkernels* avx512_bf16_kernels(DType dtype) {
  static constexpr Microkernels kPairs = pair_kernels();
  return dtype == DType::kBFloat16 ? &kPairs : nullptr;
}

}  // namespace sparse_autotune::cpu_tiled

#endif
