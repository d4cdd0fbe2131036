// Two sums rounded to halves, as one word.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace sparse_autotune {

template <typename T>
__device__ __forceinline__ uint32_t pack(float low, float high) {
  uint32_t word;
  if constexpr (std::is_same_v<T, __half>) {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;\n" : "=r"(word) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(word) : "f"(high), "f"(low));
  }
  return word;
}

}  // namespace sparse_autotune
