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
#include "kernels/cuda/device/wgmma_lists.h"
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
#include "kernels/cuda/device/wgmma_lists.h"
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
