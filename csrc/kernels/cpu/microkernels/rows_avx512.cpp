// cpu_rows for AVX-512 (F, BW, DQ, VL): 16 floats or 8 doubles a vector, tiles of up to 8 rows x 3
// vectors or 6 x 4.
#if defined(__x86_64__)
#include "kernels/cpu/microkernels/vectors_avx512.h"

#include "kernels/cpu/microkernels/rows_microkernel.h"

namespace sparse_autotune::cpu_rows {
namespace {

template <class Vector>
struct Narrow : RowLanes<Vector> {
  static constexpr int kVectors = 1, kTile = 8, kMost = 1;
};

struct Float16Lanes : RowLanes<Floats16> {
  using Half = Narrow<Floats8>;
  using Quarter = Narrow<Floats4>;
  static constexpr int kVectors = 8, kTile = 24, kMost = 4;
  static SPARSE_AUTOTUNE_INLINE float sum(Vec x) { return _mm512_reduce_add_ps(x); }
  // Of `count` blocks from `first` on, for each lane that of its block.
  static SPARSE_AUTOTUNE_INLINE Offsets load_columns(Indices columns, int64_t first, int count,
                                                     Offsets block, Mask lanes) {
    if (columns.wide) {
      const int64_t* from = static_cast<const int64_t*>(columns.data) + first;
      return reinterpret_cast<Offsets>(_mm512_mask_i32gather_epi32(
          _mm512_setzero_si512(), lanes, reinterpret_cast<__m512i>(block), from, 8));
    }
    const int32_t* from = static_cast<const int32_t*>(columns.data) + first;
    const __m512i some = _mm512_maskz_loadu_epi32(first_lanes(count), from);
    return __builtin_shuffle(reinterpret_cast<Offsets>(some), block);
  }
  static SPARSE_AUTOTUNE_INLINE Vec gather(const float* p, Offsets at, Mask m) {
    return _mm512_mask_i32gather_ps(_mm512_setzero_ps(), m, reinterpret_cast<__m512i>(at), p, 4);
  }
};

struct Double8Lanes : RowLanes<Doubles8> {
  using Half = Narrow<Doubles4>;
  using Quarter = Narrow<Doubles2>;
  static constexpr int kVectors = 8, kTile = 24, kMost = 4;
  static SPARSE_AUTOTUNE_INLINE double sum(Vec x) { return _mm512_reduce_add_pd(x); }
  static SPARSE_AUTOTUNE_INLINE Offsets load_columns(Indices columns, int64_t first, int count,
                                                     Offsets block, Mask lanes) {
    if (columns.wide) {
      const int64_t* from = static_cast<const int64_t*>(columns.data) + first;
      return reinterpret_cast<Offsets>(_mm256_mmask_i32gather_epi32(
          _mm256_setzero_si256(), lanes, reinterpret_cast<__m256i>(block), from, 8));
    }
    const int32_t* from = static_cast<const int32_t*>(columns.data) + first;
    const __m256i some = _mm256_maskz_loadu_epi32(first_lanes(count), from);
    return __builtin_shuffle(reinterpret_cast<Offsets>(some), block);
  }
  static SPARSE_AUTOTUNE_INLINE Vec gather(const double* p, Offsets at, Mask m) {
    return _mm512_mask_i32gather_pd(_mm512_setzero_pd(), m, reinterpret_cast<__m256i>(at), p, 8);
  }
};

}  // namespace

const RowKernels* avx512_row_kernels(DType dtype) {
  return row_kernels_of<Float16Lanes, Double8Lanes>(dtype);
}

}  // namespace sparse_autotune::cpu_rows

#endif
