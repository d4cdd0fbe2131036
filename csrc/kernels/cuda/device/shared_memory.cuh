// Shared memory by its 32-bit byte addresses, as __cvta_generic_to_shared gives them.
//
// A float, and a float4 that is stored, may be sums of wgmma. Moved as words, they would make ptxas
// wait for each wgmma, or put instructions in another order.
#pragma once

#include <cstdint>
#include <type_traits>

namespace sparse_autotune {

// T is of 2, 4, 8 or 16 bytes, and lies at a multiple of as many.
template <typename T>
__device__ __forceinline__ T load_shared(uint32_t from) {
  static_assert(std::is_trivially_copyable_v<T>);
  if constexpr (std::is_same_v<T, float>) {
    float x;
    asm volatile("ld.shared.f32 %0, [%1];\n" : "=f"(x) : "r"(from) : "memory");
    return x;
  } else if constexpr (sizeof(T) == 2) {
    uint16_t x;
    asm volatile("ld.shared.b16 %0, [%1];\n" : "=h"(x) : "r"(from) : "memory");
    return __builtin_bit_cast(T, x);
  } else if constexpr (sizeof(T) == 4) {
    uint32_t x;
    asm volatile("ld.shared.b32 %0, [%1];\n" : "=r"(x) : "r"(from) : "memory");
    return __builtin_bit_cast(T, x);
  } else if constexpr (sizeof(T) == 8) {
    uint2 x;
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];\n"
                 : "=r"(x.x), "=r"(x.y)
                 : "r"(from)
                 : "memory");
    return __builtin_bit_cast(T, x);
  } else {
    uint4 x;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "r"(from)
                 : "memory");
    return __builtin_bit_cast(T, x);
  }
}

// T is of 4, 8 or 16 bytes, and goes to a multiple of as many.
template <typename T>
__device__ __forceinline__ void store_shared(uint32_t to, T x) {
  static_assert(std::is_trivially_copyable_v<T>);
  if constexpr (std::is_same_v<T, float>) {
    asm volatile("st.shared.f32 [%0], %1;\n" ::"r"(to), "f"(x) : "memory");
  } else if constexpr (std::is_same_v<T, float4>) {
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};\n" ::"r"(to), "f"(x.x), "f"(x.y),
                 "f"(x.z), "f"(x.w)
                 : "memory");
  } else if constexpr (sizeof(T) == 4) {
    asm volatile("st.shared.b32 [%0], %1;\n" ::"r"(to), "r"(__builtin_bit_cast(uint32_t, x))
                 : "memory");
  } else if constexpr (sizeof(T) == 8) {
    const auto word = __builtin_bit_cast(uint2, x);
    asm volatile("st.shared.v2.b32 [%0], {%1, %2};\n" ::"r"(to), "r"(word.x), "r"(word.y)
                 : "memory");
  } else {
    const auto word = __builtin_bit_cast(uint4, x);
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};\n" ::"r"(to), "r"(word.x), "r"(word.y),
                 "r"(word.z), "r"(word.w)
                 : "memory");
  }
}

}  // namespace sparse_autotune
