// cpu_rows for AVX-512 (F, BW, DQ, VL): 16 floats or 8 doubles a vector, tiles of up to 8 rows x 3
// vectors or 6 x 4.
#if defined(__x86_64__)
#include "kernels/cpu/microkernels/vectors_avx512.h"

#include "kernels/cpu/microkernels/rows_microkernel.h"

namespace sparse_autotune::cpu_rows {
namespace {

struct Float4Lanes : Floats4 {
  using Index = __m128i;
  static constexpr int kVectors = 1, kTile = 8, kMost = 1;
  static SPARSE_AUTOTUNE_INLINE Index index(const int32_t* lanes) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(lanes));
  }
  static SPARSE_AUTOTUNE_INLINE Vec permute(Vec x, Index lanes) {
    return _mm_permutevar_ps(x, lanes);
  }
};

struct Float8Lanes : Floats8 {
  using Index = __m256i;
  static constexpr int kVectors = 1, kTile = 8, kMost = 1;
  static SPARSE_AUTOTUNE_INLINE Index index(const int32_t* lanes) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(lanes));
  }
  static SPARSE_AUTOTUNE_INLINE Vec permute(Vec x, Index lanes) {
    return _mm256_permutexvar_ps(lanes, x);
  }
};

struct Float16Lanes : Floats16 {
  using Index = __m512i;
  using Offsets = __m512i;
  using Half = Float8Lanes;
  using Quarter = Float4Lanes;
  static constexpr int kVectors = 8, kTile = 24, kMost = 4;
  static SPARSE_AUTOTUNE_INLINE float sum(Vec x) { return _mm512_reduce_add_ps(x); }
  static SPARSE_AUTOTUNE_INLINE Index index(const int32_t* lanes) {
    return _mm512_loadu_si512(lanes);
  }
  static SPARSE_AUTOTUNE_INLINE Vec permute(Vec x, Index lanes) {
    return _mm512_permutexvar_ps(lanes, x);
  }
  static SPARSE_AUTOTUNE_INLINE Offsets offsets(const int32_t* p) { return _mm512_loadu_si512(p); }
  static SPARSE_AUTOTUNE_INLINE Offsets add_offsets(Offsets a, Offsets b) {
    return _mm512_add_epi32(a, b);
  }
  // Of `count` blocks from `first` on, for each lane that of its block.
  static SPARSE_AUTOTUNE_INLINE Offsets load_columns(const void* columns, bool wide, int64_t first,
                                                     int count, Offsets block, Mask lanes) {
    if (wide) {
      const int64_t* from = static_cast<const int64_t*>(columns) + first;
      return _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), lanes, block, from, 8);
    }
    const int32_t* from = static_cast<const int32_t*>(columns) + first;
    return _mm512_permutexvar_epi32(block, _mm512_maskz_loadu_epi32(first_lanes(count), from));
  }
  static SPARSE_AUTOTUNE_INLINE Vec gather(const float* p, Offsets at, Mask m) {
    return _mm512_mask_i32gather_ps(_mm512_setzero_ps(), m, at, p, 4);
  }
};

struct Double2Lanes : Doubles2 {
  using Index = __m128i;
  static constexpr int kVectors = 1, kTile = 8, kMost = 1;
  // The instruction looks at the second bit of each lane.
  static SPARSE_AUTOTUNE_INLINE Index index(const int32_t* lanes) {
    return _mm_set_epi64x(2 * lanes[1], 2 * lanes[0]);
  }
  static SPARSE_AUTOTUNE_INLINE Vec permute(Vec x, Index lanes) {
    return _mm_permutevar_pd(x, lanes);
  }
};

struct Double4Lanes : Doubles4 {
  using Index = __m256i;
  static constexpr int kVectors = 1, kTile = 8, kMost = 1;
  static SPARSE_AUTOTUNE_INLINE Index index(const int32_t* lanes) {
    return _mm256_cvtepi32_epi64(_mm_loadu_si128(reinterpret_cast<const __m128i*>(lanes)));
  }
  static SPARSE_AUTOTUNE_INLINE Vec permute(Vec x, Index lanes) {
    return _mm256_permutexvar_pd(lanes, x);
  }
};

struct Double8Lanes : Doubles8 {
  using Index = __m512i;
  using Offsets = __m256i;
  using Half = Double4Lanes;
  using Quarter = Double2Lanes;
  static constexpr int kVectors = 8, kTile = 24, kMost = 4;
  static SPARSE_AUTOTUNE_INLINE double sum(Vec x) { return _mm512_reduce_add_pd(x); }
  static SPARSE_AUTOTUNE_INLINE Index index(const int32_t* lanes) {
    return _mm512_cvtepi32_epi64(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(lanes)));
  }
  static SPARSE_AUTOTUNE_INLINE Vec permute(Vec x, Index lanes) {
    return _mm512_permutexvar_pd(lanes, x);
  }
  static SPARSE_AUTOTUNE_INLINE Offsets offsets(const int32_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  static SPARSE_AUTOTUNE_INLINE Offsets add_offsets(Offsets a, Offsets b) {
    return _mm256_add_epi32(a, b);
  }
  static SPARSE_AUTOTUNE_INLINE Offsets load_columns(const void* columns, bool wide, int64_t first,
                                                     int count, Offsets block, Mask lanes) {
    if (wide) {
      const int64_t* from = static_cast<const int64_t*>(columns) + first;
      return _mm256_mmask_i32gather_epi32(_mm256_setzero_si256(), lanes, block, from, 8);
    }
    const int32_t* from = static_cast<const int32_t*>(columns) + first;
    return _mm256_permutexvar_epi32(block, _mm256_maskz_loadu_epi32(first_lanes(count), from));
  }
  static SPARSE_AUTOTUNE_INLINE Vec gather(const double* p, Offsets at, Mask m) {
    return _mm512_mask_i32gather_pd(_mm512_setzero_pd(), m, at, p, 8);
  }
};

}  // namespace

const RowKernels* avx512_row_kernels(DType dtype) {
  return row_kernels_of<Float16Lanes, Double8Lanes>(dtype);
}

}  // namespace sparse_autotune::cpu_rows

#endif
