// wgmma: a warpgroup multiplies tiles that lie in shared memory; A may be in registers.
//
// One instruction adds A (64 x 16 halves, or 64 x 8 floats) times B (16 or 8 x kN) to fp32 sums.
// Warp w of the warpgroup holds rows 16 w to 16 w + 15; lane 4 * g + t has, of columns 8 j + 2 t
// and the next one,
//   sum[4 j], sum[4 j + 1]: row 16 w + g       sum[4 j + 2], sum[4 j + 3]: row 16 w + g + 8.
// Tiles are lines of 128 bytes as TMA's 128-byte swizzle leaves them, aligned to 1024 bytes:
//   k contiguous (A, and B column-major): a line holds 64 k of one row of A or column of B, of
//   floats 32. Floats are multiplied as TF32, the last 13 bits cut, and have no other form.
//   n contiguous (B row-major): a line holds 64 columns of one k; the lines of all k, 64 as a rule,
//   come before those of the next 64 columns.
//   m contiguous (A transposed): a line holds the 64 rows of one k.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/device/pack.cuh"
#include "kernels/cuda/device/tma.cuh"

namespace sparse_autotune {
namespace wgmma {

// Matrix descriptors; to move on by 16 k, add the steps below. Fields (PTX ISA, "matrix
// descriptor"), all in units of 16 bytes: bits 0-13 address, 16-29 and 32-45 two strides; bit 62
// means 128-byte swizzle. Eight lines are one unit of the swizzle.
constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
constexpr uint64_t kEightLines = uint64_t{8 * kLineBytes / 16} << 32;

__device__ __forceinline__ uint64_t k_contiguous(uint32_t address) {
  return kSwizzle128 | kEightLines | uint64_t{1} << 16 | (address & 0x3FFFF) >> 4;
}
constexpr uint64_t kContiguousStep = 16 * 2 / 16;

__device__ __forceinline__ uint64_t m_contiguous(uint32_t address) {
  return kSwizzle128 | kEightLines | (address & 0x3FFFF) >> 4;
}
// `lines`: of all k, from 64 columns to the next.
__device__ __forceinline__ uint64_t n_contiguous(uint32_t address, uint64_t lines = 64) {
  return m_contiguous(address) | lines * kLineBytes / 16 << 16;
}
constexpr uint64_t kLineStep = 16 * kLineBytes / 16;  // of both

// Before the first multiply after the warpgroup's threads touched the sums.
__device__ __forceinline__ void fence() {
  asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
}
__device__ __forceinline__ void commit() {
  asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
}
// Waits for all but the newest kPending groups.
template <int kPending>
__device__ __forceinline__ void wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(kPending) : "memory");
}
// Keeps the compiler from moving uses of the sums across this point.
template <int kCount>
__device__ __forceinline__ void pin(float (&sum)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(sum[i])::"memory");
}

// clang-format off
// The instruction names every sum in text and in the operands: lists of both, put together from
// runs of 16.
#define SUMS_16(i)                                                                      \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]),           \
  "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7]), "+f"(d[i + 8]), "+f"(d[i + 9]),       \
  "+f"(d[i + 10]), "+f"(d[i + 11]), "+f"(d[i + 12]), "+f"(d[i + 13]), "+f"(d[i + 14]),  \
  "+f"(d[i + 15])
#define SUMS_32 SUMS_16(0), SUMS_16(16)
#define SUMS_64 SUMS_32, SUMS_16(32), SUMS_16(48)
#define SUMS_96 SUMS_64, SUMS_16(64), SUMS_16(80)
#define SUMS_128 SUMS_96, SUMS_16(96), SUMS_16(112)
#define NAMES_32 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15" \
  ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES_64 NAMES_32 \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47" \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define NAMES_96 NAMES_64 \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79" \
  ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define NAMES_128 NAMES_96 \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

// One line a width.
#define WGMMA(n, type, names, a, b, add, m_contiguous, n_contiguous, ...)                 \
  asm volatile(                                                                           \
      "{\n.reg .pred add;\nsetp.ne.b32 add, " add ", 0;\n"                                \
      "wgmma.mma_async.sync.aligned.m64n" n "k16.f32." type "." type                      \
      " {" names "}, " a ", " b ", add, 1, 1, " m_contiguous ", " n_contiguous ";\n}\n"    \
      : __VA_ARGS__                                                                       \
      : "l"(a_tile), "l"(b_tile), "r"(accumulate), "n"(kMContiguous), "n"(kNContiguous))
#define WGMMA_TF32(n, names, a, b, add, ...)                                              \
  asm volatile(                                                                           \
      "{\n.reg .pred add;\nsetp.ne.b32 add, " add ", 0;\n"                                \
      "wgmma.mma_async.sync.aligned.m64n" n "k8.f32.tf32.tf32"                            \
      " {" names "}, " a ", " b ", add, 1, 1;\n}\n"                                       \
      : __VA_ARGS__                                                                       \
      : "l"(a_tile), "l"(b_tile), "r"(accumulate))
#define WIDTH(n, names, a, b, add, m_contiguous, n_contiguous, ...)                       \
  if constexpr (kN == n && std::is_same_v<T, float>) {                                    \
    WGMMA_TF32(#n, names, a, b, add, __VA_ARGS__);                                        \
  } else if constexpr (kN == n && std::is_same_v<T, __half>) {                            \
    WGMMA(#n, "f16", names, a, b, add, m_contiguous, n_contiguous, __VA_ARGS__);          \
  } else if constexpr (kN == n) {                                                         \
    WGMMA(#n, "bf16", names, a, b, add, m_contiguous, n_contiguous, __VA_ARGS__);         \
  }

// d += A * B, or d = A * B when `accumulate` is 0. T is the type of A and B.
template <typename T, int kN, bool kNContiguous, bool kMContiguous = false>
__device__ __forceinline__ void multiply(float (&d)[kN / 2], uint64_t a_tile, uint64_t b_tile,
                                         int accumulate) {
  static_assert(!std::is_same_v<T, float> || !(kNContiguous || kMContiguous), "TF32 takes lines of k alone");
  static_assert(kN == 256 || kN == 192 || kN == 128 || kN == 64, "there is code for these widths");
  WIDTH(256, NAMES_128, "%128", "%129", "%130", "%131", "%132", SUMS_128)
  WIDTH(192, NAMES_96, "%96", "%97", "%98", "%99", "%100", SUMS_96)
  WIDTH(128, NAMES_64, "%64", "%65", "%66", "%67", "%68", SUMS_64)
  WIDTH(64, NAMES_32, "%32", "%33", "%34", "%35", "%36", SUMS_32)
}
#undef WIDTH
#undef WGMMA
#undef WGMMA_TF32

// Sums of m64nNk16, rounded to halves, two neighbours a word, are fragments of A of a product over
// those N: words 4 i to 4 i + 3 are its k from 16 i to 16 i + 15.
#define WGMMA(n, type, names, a, b, ...)                                                \
  asm volatile(                                                                         \
      "wgmma.mma_async.sync.aligned.m64n" n "k16.f32." type "." type                    \
      " {" names "}, {" a "}, " b ", 1, 1, 1, 1;\n"                                     \
      : __VA_ARGS__                                                                     \
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b_tile))
#define WIDTH(n, names, a, b, ...)                                                      \
  if constexpr (kN == n && std::is_same_v<T, __half>) {                                 \
    WGMMA(#n, "f16", names, a, b, __VA_ARGS__);                                         \
  } else if constexpr (kN == n) {                                                       \
    WGMMA(#n, "bf16", names, a, b, __VA_ARGS__);                                        \
  }

// d += A * B, A in registers, B with n contiguous.
template <typename T, int kN>
__device__ __forceinline__ void multiply_registers(float (&d)[kN / 2], uint32_t a0, uint32_t a1,
                                                   uint32_t a2, uint32_t a3, uint64_t b_tile) {
  static_assert(kN == 128 || kN == 64, "there is code for these widths");
  WIDTH(128, NAMES_64, "%64, %65, %66, %67", "%68", SUMS_64)
  WIDTH(64, NAMES_32, "%32, %33, %34, %35", "%36", SUMS_32)
}
#undef WIDTH
#undef WGMMA

#undef NAMES_32
#undef NAMES_64
#undef NAMES_96
#undef NAMES_128
#undef SUMS_16
#undef SUMS_32
#undef SUMS_64
#undef SUMS_96
#undef SUMS_128
// clang-format on

// Sums as words of two halves.
template <typename T, int kCount>
__device__ __forceinline__ void round_sums(uint32_t (&word)[kCount / 2],
                                           const float (&sum)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) word[i] = pack<T>(sum[2 * i], sum[2 * i + 1]);
}

// d += A * B over a line of k, or d = A * B unless `accumulates`, of the tiles at those addresses.
template <typename T, int kN, bool kNContiguous, bool kMContiguous>
__device__ __forceinline__ void multiply_lines(float (&d)[kN / 2], uint32_t a_tile, uint32_t b_tile,
                                               bool accumulates = true) {
  constexpr uint64_t kStepA = kMContiguous ? kLineStep : kContiguousStep;
  constexpr uint64_t kStepB = kNContiguous ? kLineStep : kContiguousStep;
  const uint64_t a = kMContiguous ? m_contiguous(a_tile) : k_contiguous(a_tile);
  const uint64_t b = kNContiguous ? n_contiguous(b_tile) : k_contiguous(b_tile);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    multiply<T, kN, kNContiguous, kMContiguous>(d, a + i * kStepA, b + i * kStepB,
                                                accumulates || i > 0);
  }
}

}  // namespace wgmma
}  // namespace sparse_autotune
