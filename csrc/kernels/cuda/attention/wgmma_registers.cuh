// wgmma with A in registers: what is left of one product becomes an operand of the next.
//
// The sums of m64nNk16 (wgmma.cuh says which thread has which), rounded to halves, two neighbours a
// word, are A's fragments of a product over those N: words 4 i to 4 i + 3 are its k from 16 i to
// 16 i + 15.
#pragma once

#include "kernels/cuda/device/pack.cuh"
#include "kernels/cuda/device/wgmma.cuh"

namespace sparse_autotune {
namespace wgmma {

// A panel is 64 columns of all lines; `panel_lines` of them lie between a panel and the next.
__device__ __forceinline__ uint64_t n_contiguous_panels(uint32_t address, uint64_t panel_lines) {
  return m_contiguous(address) | panel_lines * kLineBytes / 16 << 16;
}

// clang-format off
#define SUMS_16(i)                                                                      \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]),           \
  "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7]), "+f"(d[i + 8]), "+f"(d[i + 9]),       \
  "+f"(d[i + 10]), "+f"(d[i + 11]), "+f"(d[i + 12]), "+f"(d[i + 13]), "+f"(d[i + 14]),  \
  "+f"(d[i + 15])
#define SUMS_32 SUMS_16(0), SUMS_16(16)
#define SUMS_64 SUMS_32, SUMS_16(32), SUMS_16(48)
#define NAMES_32 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15" \
  ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES_64 NAMES_32 \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47" \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
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

// d += A * B, B with n contiguous.
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
#undef SUMS_16
#undef SUMS_32
#undef SUMS_64
// clang-format on

// Sums as words of two halves.
template <typename T, int kCount>
__device__ __forceinline__ void round_sums(uint32_t (&word)[kCount / 2],
                                           const float (&sum)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) word[i] = pack<T>(sum[2 * i], sum[2 * i + 1]);
}

}  // namespace wgmma
}  // namespace sparse_autotune
