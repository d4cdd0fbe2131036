// cpu_rows for AVX-512 (F, BW, DQ, VL): 16 floats or 8 doubles a vector, tiles of up to 8 rows x 3
// vectors or 6 x 4.
#if defined(__x86_64__)
// GCC 12's own headers trip these (its bug 105593): they start "undefined" vectors from themselves.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>

#define SPARSE_AUTOTUNE_TARGET \
  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")))
#include "kernels/cpu/microkernels/rows_microkernel.h"

namespace sparse_autotune::cpu_rows {
namespace {

struct Float4Lanes {
  using T = float;
  using Vec = __m128;
  using Mask = __mmask8;
  using Index = __m128i;
  static constexpr int kLanes = 4, kVectors = 1, kTile = 8, kMost = 1;
  static SPARSE_AUTOTUNE_INLINE Mask first_lanes(int n) { return static_cast<Mask>((1u << n) - 1); }
  static SPARSE_AUTOTUNE_INLINE Vec zero() { return _mm_setzero_ps(); }
  static SPARSE_AUTOTUNE_INLINE Vec load(const float* p) { return _mm_loadu_ps(p); }
  static SPARSE_AUTOTUNE_INLINE Vec load_part(const float* p, Mask m) {
    return _mm_maskz_loadu_ps(m, p);
  }
  static SPARSE_AUTOTUNE_INLINE void store(float* p, Vec x) { _mm_storeu_ps(p, x); }
  static SPARSE_AUTOTUNE_INLINE void store_part(float* p, Vec x, Mask m) {
    _mm_mask_storeu_ps(p, m, x);
  }
  static SPARSE_AUTOTUNE_INLINE Vec broadcast(const float* p) { return _mm_set1_ps(*p); }
  static SPARSE_AUTOTUNE_INLINE Vec multiply_add(Vec sum, Vec a, Vec b) {
    return _mm_fmadd_ps(a, b, sum);
  }
  static SPARSE_AUTOTUNE_INLINE Vec add(Vec a, Vec b) { return _mm_add_ps(a, b); }
  static SPARSE_AUTOTUNE_INLINE Index index(const int32_t* lanes) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(lanes));
  }
  static SPARSE_AUTOTUNE_INLINE Vec permute(Vec x, Index lanes) {
    return _mm_permutevar_ps(x, lanes);
  }
};

struct Float8Lanes {
  using T = float;
  using Vec = __m256;
  using Mask = __mmask8;
  using Index = __m256i;
  static constexpr int kLanes = 8, kVectors = 1, kTile = 8, kMost = 1;
  static SPARSE_AUTOTUNE_INLINE Mask first_lanes(int n) { return static_cast<Mask>((1u << n) - 1); }
  static SPARSE_AUTOTUNE_INLINE Vec zero() { return _mm256_setzero_ps(); }
  static SPARSE_AUTOTUNE_INLINE Vec load(const float* p) { return _mm256_loadu_ps(p); }
  static SPARSE_AUTOTUNE_INLINE Vec load_part(const float* p, Mask m) {
    return _mm256_maskz_loadu_ps(m, p);
  }
  static SPARSE_AUTOTUNE_INLINE void store(float* p, Vec x) { _mm256_storeu_ps(p, x); }
  static SPARSE_AUTOTUNE_INLINE void store_part(float* p, Vec x, Mask m) {
    _mm256_mask_storeu_ps(p, m, x);
  }
  static SPARSE_AUTOTUNE_INLINE Vec broadcast(const float* p) { return _mm256_set1_ps(*p); }
  static SPARSE_AUTOTUNE_INLINE Vec multiply_add(Vec sum, Vec a, Vec b) {
    return _mm256_fmadd_ps(a, b, sum);
  }
  static SPARSE_AUTOTUNE_INLINE Vec add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
  static SPARSE_AUTOTUNE_INLINE Index index(const int32_t* lanes) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(lanes));
  }
  static SPARSE_AUTOTUNE_INLINE Vec permute(Vec x, Index lanes) {
    return _mm256_permutexvar_ps(lanes, x);
  }
};

struct Float16Lanes {
  using T = float;
  using Vec = __m512;
  using Mask = __mmask16;
  using Index = __m512i;
  using Offsets = __m512i;
  using Half = Float8Lanes;
  using Quarter = Float4Lanes;
  static constexpr int kLanes = 16, kVectors = 8, kTile = 24, kMost = 4;
  static SPARSE_AUTOTUNE_INLINE Mask first_lanes(int n) { return static_cast<Mask>((1u << n) - 1); }
  static SPARSE_AUTOTUNE_INLINE Vec zero() { return _mm512_setzero_ps(); }
  static SPARSE_AUTOTUNE_INLINE Vec load(const float* p) { return _mm512_loadu_ps(p); }
  static SPARSE_AUTOTUNE_INLINE Vec load_part(const float* p, Mask m) {
    return _mm512_maskz_loadu_ps(m, p);
  }
  static SPARSE_AUTOTUNE_INLINE void store(float* p, Vec x) { _mm512_storeu_ps(p, x); }
  static SPARSE_AUTOTUNE_INLINE void store_part(float* p, Vec x, Mask m) {
    _mm512_mask_storeu_ps(p, m, x);
  }
  static SPARSE_AUTOTUNE_INLINE Vec broadcast(const float* p) { return _mm512_set1_ps(*p); }
  static SPARSE_AUTOTUNE_INLINE Vec multiply_add(Vec sum, Vec a, Vec b) {
    return _mm512_fmadd_ps(a, b, sum);
  }
  static SPARSE_AUTOTUNE_INLINE Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
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

struct Double2Lanes {
  using T = double;
  using Vec = __m128d;
  using Mask = __mmask8;
  using Index = __m128i;
  static constexpr int kLanes = 2, kVectors = 1, kTile = 8, kMost = 1;
  static SPARSE_AUTOTUNE_INLINE Mask first_lanes(int n) { return static_cast<Mask>((1u << n) - 1); }
  static SPARSE_AUTOTUNE_INLINE Vec zero() { return _mm_setzero_pd(); }
  static SPARSE_AUTOTUNE_INLINE Vec load(const double* p) { return _mm_loadu_pd(p); }
  static SPARSE_AUTOTUNE_INLINE Vec load_part(const double* p, Mask m) {
    return _mm_maskz_loadu_pd(m, p);
  }
  static SPARSE_AUTOTUNE_INLINE void store(double* p, Vec x) { _mm_storeu_pd(p, x); }
  static SPARSE_AUTOTUNE_INLINE void store_part(double* p, Vec x, Mask m) {
    _mm_mask_storeu_pd(p, m, x);
  }
  static SPARSE_AUTOTUNE_INLINE Vec broadcast(const double* p) { return _mm_set1_pd(*p); }
  static SPARSE_AUTOTUNE_INLINE Vec multiply_add(Vec sum, Vec a, Vec b) {
    return _mm_fmadd_pd(a, b, sum);
  }
  static SPARSE_AUTOTUNE_INLINE Vec add(Vec a, Vec b) { return _mm_add_pd(a, b); }
  // The instruction looks at the second bit of each lane.
  static SPARSE_AUTOTUNE_INLINE Index index(const int32_t* lanes) {
    return _mm_set_epi64x(2 * lanes[1], 2 * lanes[0]);
  }
  static SPARSE_AUTOTUNE_INLINE Vec permute(Vec x, Index lanes) {
    return _mm_permutevar_pd(x, lanes);
  }
};

struct Double4Lanes {
  using T = double;
  using Vec = __m256d;
  using Mask = __mmask8;
  using Index = __m256i;
  static constexpr int kLanes = 4, kVectors = 1, kTile = 8, kMost = 1;
  static SPARSE_AUTOTUNE_INLINE Mask first_lanes(int n) { return static_cast<Mask>((1u << n) - 1); }
  static SPARSE_AUTOTUNE_INLINE Vec zero() { return _mm256_setzero_pd(); }
  static SPARSE_AUTOTUNE_INLINE Vec load(const double* p) { return _mm256_loadu_pd(p); }
  static SPARSE_AUTOTUNE_INLINE Vec load_part(const double* p, Mask m) {
    return _mm256_maskz_loadu_pd(m, p);
  }
  static SPARSE_AUTOTUNE_INLINE void store(double* p, Vec x) { _mm256_storeu_pd(p, x); }
  static SPARSE_AUTOTUNE_INLINE void store_part(double* p, Vec x, Mask m) {
    _mm256_mask_storeu_pd(p, m, x);
  }
  static SPARSE_AUTOTUNE_INLINE Vec broadcast(const double* p) { return _mm256_set1_pd(*p); }
  static SPARSE_AUTOTUNE_INLINE Vec multiply_add(Vec sum, Vec a, Vec b) {
    return _mm256_fmadd_pd(a, b, sum);
  }
  static SPARSE_AUTOTUNE_INLINE Vec add(Vec a, Vec b) { return _mm256_add_pd(a, b); }
  static SPARSE_AUTOTUNE_INLINE Index index(const int32_t* lanes) {
    return _mm256_cvtepi32_epi64(_mm_loadu_si128(reinterpret_cast<const __m128i*>(lanes)));
  }
  static SPARSE_AUTOTUNE_INLINE Vec permute(Vec x, Index lanes) {
    return _mm256_permutexvar_pd(lanes, x);
  }
};

struct Double8Lanes {
  using T = double;
  using Vec = __m512d;
  using Mask = __mmask8;
  using Index = __m512i;
  using Offsets = __m256i;
  using Half = Double4Lanes;
  using Quarter = Double2Lanes;
  static constexpr int kLanes = 8, kVectors = 8, kTile = 24, kMost = 4;
  static SPARSE_AUTOTUNE_INLINE Mask first_lanes(int n) { return static_cast<Mask>((1u << n) - 1); }
  static SPARSE_AUTOTUNE_INLINE Vec zero() { return _mm512_setzero_pd(); }
  static SPARSE_AUTOTUNE_INLINE Vec load(const double* p) { return _mm512_loadu_pd(p); }
  static SPARSE_AUTOTUNE_INLINE Vec load_part(const double* p, Mask m) {
    return _mm512_maskz_loadu_pd(m, p);
  }
  static SPARSE_AUTOTUNE_INLINE void store(double* p, Vec x) { _mm512_storeu_pd(p, x); }
  static SPARSE_AUTOTUNE_INLINE void store_part(double* p, Vec x, Mask m) {
    _mm512_mask_storeu_pd(p, m, x);
  }
  static SPARSE_AUTOTUNE_INLINE Vec broadcast(const double* p) { return _mm512_set1_pd(*p); }
  static SPARSE_AUTOTUNE_INLINE Vec multiply_add(Vec sum, Vec a, Vec b) {
    return _mm512_fmadd_pd(a, b, sum);
  }
  static SPARSE_AUTOTUNE_INLINE Vec add(Vec a, Vec b) { return _mm512_add_pd(a, b); }
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

#else
#include "kernels/cpu/microkernels/rows.h"

namespace sparse_autotune::cpu_rows {
const RowKernels* avx512_row_kernels(DType) { return nullptr; }
}  // namespace sparse_autotune::cpu_rows
#endif
