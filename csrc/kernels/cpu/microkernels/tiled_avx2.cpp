// cpu_tiled for AVX2 with FMA and F16C: 8 floats or 4 doubles a vector, tiles of 4 rows x 3 vectors
// or 6 x 2: 12 accumulators, 3 rows of B and one broadcast fill the 16 registers. Half types are
// widened to fp32, whose sums they need anyway.
#if defined(__x86_64__)
#include "kernels/cpu/microkernels/vectors_avx2.h"

#include "kernels/cpu/microkernels/tiled_microkernel.h"

namespace sparse_autotune::cpu_tiled {
namespace {

// AVX2 cannot mask 16-bit elements: a part goes through eight of them on the stack.
struct Words8 {
  using Packed = __m128i;
  static SPARSE_AUTOTUNE_INLINE Packed load_part(const uint16_t* p, int n) {
    alignas(16) uint16_t words[8] = {};
    for (int i = 0; i < n; ++i) words[i] = p[i];
    return _mm_load_si128(reinterpret_cast<const __m128i*>(words));
  }
  static SPARSE_AUTOTUNE_INLINE void store_part(uint16_t* p, Packed x, int n) {
    alignas(16) uint16_t words[8];
    _mm_store_si128(reinterpret_cast<__m128i*>(words), x);
    for (int i = 0; i < n; ++i) p[i] = words[i];
  }
  static SPARSE_AUTOTUNE_INLINE __m256 widen(Packed x) { return _mm256_cvtph_ps(x); }
  static SPARSE_AUTOTUNE_INLINE Packed narrow(__m256 x) {
    return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  static SPARSE_AUTOTUNE_INLINE __m256 lift(Packed x) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
  }
  template <class Bits>
  static SPARSE_AUTOTUNE_INLINE Packed drop(Bits bits) {
    const __m256i upper = _mm256_srli_epi32(reinterpret_cast<__m256i>(bits), 16);
    // Packs within 128-bit halves; the permutation brings their low parts together.
    const __m256i packed = _mm256_packus_epi32(upper, upper);
    return _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
  }
};

// multiply_add() is an instruction of its own: GCC would add to the broadcast or to a row of B,
// which takes a register more than there are, or would load rows of B anew for each row of A.
template <class Vector>
struct Avx2Lanes : Lanes<Vector> {
  static constexpr int kRows = 6, kVectors = 3, kSums = 12, kTurnedRows = 6;
  using Vec = typename Vector::Vec;
  static SPARSE_AUTOTUNE_INLINE Vec multiply_add(Vec sum, Vec a, Vec b) {
    if constexpr (sizeof(typename Vector::T) == 4) {
      asm("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b));
    } else {
      asm("vfmadd231pd %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b));
    }
    return sum;
  }
};

}  // namespace

const Microkernels* avx2_kernels(DType dtype) {
  return kernels_of<Avx2Lanes<Floats8>, Avx2Lanes<Doubles4>, Words8>(dtype);
}

}  // namespace sparse_autotune::cpu_tiled

#endif
