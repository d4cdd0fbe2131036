// Sums rounded to halves: two as one word and back, and 8x8 matrices of them to shared memory.
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

template <typename T, int kCount>
__device__ __forceinline__ void pack_all(const float (&x)[kCount], uint32_t (&word)[kCount / 2]) {
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) word[i] = pack<T>(x[2 * i], x[2 * i + 1]);
}

template <typename T>
__device__ __forceinline__ float unpack(uint32_t word, bool high) {
  if constexpr (std::is_same_v<T, __half>) {
    const auto bits = static_cast<uint16_t>(high ? word >> 16 : word);
    return __half2float(__ushort_as_half(bits));
  } else {
    return __uint_as_float(high ? word & 0xffff0000u : word << 16);
  }
}

// Four 8x8 matrices from fragments like ldmatrix's; lanes 8 i to 8 i + 7 give the addresses of
// matrix i's rows, or of its columns when it is stored transposed.
__device__ __forceinline__ void stmatrix(uint32_t address, const uint32_t* word, bool transposed) {
  if (transposed) {
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(address),
        "r"(word[0]), "r"(word[1]), "r"(word[2]), "r"(word[3])
        : "memory");
  } else {
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(address),
        "r"(word[0]), "r"(word[1]), "r"(word[2]), "r"(word[3])
        : "memory");
  }
}

}  // namespace sparse_autotune
