// cpu_rows for AVX2 with FMA: 8 floats or 4 doubles a vector, tiles of up to 8 rows x 1 vector or
// 6 x 2.
#if defined(__x86_64__)
#include "kernels/cpu/microkernels/vectors_avx2.h"

#include "kernels/cpu/microkernels/rows_microkernel.h"

namespace sparse_autotune::cpu_rows {
namespace {

SPARSE_AUTOTUNE_INLINE __m128i first_words(int n) {
  return _mm_cmpgt_epi32(_mm_set1_epi32(n), _mm_setr_epi32(0, 1, 2, 3));
}

struct Float8Lanes : RowLanes<Floats8> {
  using Half = Float8Lanes;  // no narrower ones
  using Quarter = Float8Lanes;
  static constexpr int kVectors = 4, kTile = 12, kMost = 2;
  static SPARSE_AUTOTUNE_INLINE float sum(Vec x) {
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_shuffle_ps(half, half, 1)));
  }
  // Of `count` blocks from `first` on, for each lane that of its block.
  static SPARSE_AUTOTUNE_INLINE Offsets load_columns(Indices columns, int64_t first, int count,
                                                     Offsets block, Mask lanes) {
    if (columns.wide) {
      const auto* from =
          reinterpret_cast<const int*>(static_cast<const int64_t*>(columns.data) + first);
      return reinterpret_cast<Offsets>(_mm256_mask_i32gather_epi32(
          _mm256_setzero_si256(), from, reinterpret_cast<__m256i>(block), lanes, 8));
    }
    const int* from = static_cast<const int32_t*>(columns.data) + first;
    const __m256i some = _mm256_maskload_epi32(from, first_lanes(count));
    return __builtin_shuffle(reinterpret_cast<Offsets>(some), block);
  }
  static SPARSE_AUTOTUNE_INLINE Vec gather(const float* p, Offsets at, Mask m) {
    return _mm256_mask_i32gather_ps(_mm256_setzero_ps(), p, reinterpret_cast<__m256i>(at),
                                    _mm256_castsi256_ps(m), 4);
  }
};

struct Double4Lanes : RowLanes<Doubles4> {
  using Index = __m256i;      // of the halves of each lane
  using Half = Double4Lanes;  // no narrower ones
  using Quarter = Double4Lanes;
  static constexpr int kVectors = 4, kTile = 12, kMost = 2;
  static SPARSE_AUTOTUNE_INLINE double sum(Vec x) {
    const __m128d half = _mm_add_pd(_mm256_castpd256_pd128(x), _mm256_extractf128_pd(x, 1));
    return _mm_cvtsd_f64(_mm_add_sd(half, _mm_unpackhi_pd(half, half)));
  }
  static SPARSE_AUTOTUNE_INLINE Index index(const int32_t* lanes) {
    const RowLanes::Index lower = 2 * RowLanes::index(lanes);
    return reinterpret_cast<Index>(lower | (lower + 1) << 32);
  }
  static SPARSE_AUTOTUNE_INLINE Vec permute(Vec x, Index lanes) {
    return _mm256_castps_pd(_mm256_permutevar8x32_ps(_mm256_castpd_ps(x), lanes));
  }
  static SPARSE_AUTOTUNE_INLINE Offsets load_columns(Indices columns, int64_t first, int count,
                                                     Offsets block, Mask lanes) {
    if (columns.wide) {
      const auto* from =
          reinterpret_cast<const int*>(static_cast<const int64_t*>(columns.data) + first);
      const __m128i narrow = _mm256_castsi256_si128(
          _mm256_permutevar8x32_epi32(lanes, _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6)));
      return reinterpret_cast<Offsets>(_mm_mask_i32gather_epi32(
          _mm_setzero_si128(), from, reinterpret_cast<__m128i>(block), narrow, 8));
    }
    const int* from = static_cast<const int32_t*>(columns.data) + first;
    const __m128i some = _mm_maskload_epi32(from, first_words(count));
    return __builtin_shuffle(reinterpret_cast<Offsets>(some), block);
  }
  static SPARSE_AUTOTUNE_INLINE Vec gather(const double* p, Offsets at, Mask m) {
    return _mm256_mask_i32gather_pd(_mm256_setzero_pd(), p, reinterpret_cast<__m128i>(at),
                                    _mm256_castsi256_pd(m), 8);
  }
};

}  // namespace

const RowKernels* avx2_row_kernels(DType dtype) {
  return row_kernels_of<Float8Lanes, Double4Lanes>(dtype);
}

}  // namespace sparse_autotune::cpu_rows

#endif
