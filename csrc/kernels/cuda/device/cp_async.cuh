// cp.async: copies from global to shared memory that go on while the thread computes.
//
// A thread's copies since its last commit form a group; cp_async_wait<n>() returns when all but its
// newest n groups have landed. Other threads see them after the next __syncthreads().
// Shared addresses are 32-bit byte addresses, as __cvta_generic_to_shared gives them.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/shared_memory.cuh"

namespace sparse_autotune {

// Copies the first `bytes` of 16 and writes zeros for the rest; nothing else is read.
// `from` and `to` are 16-byte aligned.
__device__ __forceinline__ void cp_async_16(uint32_t to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;\n" ::"r"(to), "l"(from),
               "r"(bytes)
               : "memory");
}

// Copies all of 16 bytes, aligned likewise.
__device__ __forceinline__ void cp_async_16(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;\n" ::"r"(to), "l"(from)
               : "memory");
}

// Copies 16 bytes if `wanted`, without a branch, which would keep what follows from overlapping.
__device__ __forceinline__ void cp_async_16_if(bool wanted, uint32_t to, const void* from) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %2, 0;\n"
      "@p cp.async.cg.shared.global.L2::128B [%0], [%1], 16;\n}\n" ::"r"(to),
      "l"(from), "r"(static_cast<int>(wanted))
      : "memory");
}

// cp_async_16 for 4 or 8 bytes, aligned to as many.
template <int kBytes>
__device__ __forceinline__ void cp_async_narrow(uint32_t to, const void* from, int bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], %3, %2;\n" ::"r"(to), "l"(from), "r"(bytes),
               "n"(kBytes)
               : "memory");
}

__device__ __forceinline__ void cp_async_commit() {
  asm volatile("cp.async.commit_group;\n" ::: "memory");
}

template <int kPending>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending) : "memory");
}

// Copies one 16-byte chunk whose source is aligned to `alignment` < 16 bytes only: the first
// `bytes` of it, zeros for the rest. By the end of the group, or at once for single halves.
template <typename T>
__device__ __forceinline__ void copy_chunk_narrow(uint32_t to, const T* from, int bytes,
                                                  int alignment) {
  if (sizeof(T) >= 4 || alignment >= 4) {
    const char* source = reinterpret_cast<const char*>(from);
    const auto some = [&](int i, int most) { return min(max(bytes - i, 0), most); };
    if (alignment >= 8) {
      cp_async_narrow<8>(to, source, some(0, 8));
      cp_async_narrow<8>(to + 8, bytes > 8 ? source + 8 : source, some(8, 8));
      return;
    }
#pragma unroll
    for (int i = 0; i < 16; i += 4) {
      cp_async_narrow<4>(to + i, bytes > i ? source + i : source, some(i, 4));
    }
    return;
  }
  const auto* source = reinterpret_cast<const unsigned short*>(from);
  uint32_t word[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t low = 4 * i < bytes ? source[2 * i] : 0;
    const uint32_t high = 4 * i + 2 < bytes ? source[2 * i + 1] : 0;
    word[i] = low | high << 16;
  }
  store_shared(to, make_uint4(word[0], word[1], word[2], word[3]));
}

// The same for a source of any alignment.
template <typename T>
__device__ __forceinline__ void copy_chunk(uint32_t to, const T* from, int bytes, int alignment) {
  if (alignment >= 16) {
    cp_async_16(to, from, bytes);
  } else {
    copy_chunk_narrow(to, from, bytes, alignment);
  }
}

}  // namespace sparse_autotune
