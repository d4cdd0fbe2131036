// An address some steps on, in one instruction, and an index found that way.
#pragma once

#include <cstdint>

namespace sparse_autotune {

// base + count * bytes: compilers take the product apart, to share pieces of it or to add its
// halves up by themselves.
__device__ __forceinline__ const char* at_step(const void* base, unsigned count, unsigned bytes) {
  uint64_t address;
  asm("mad.wide.u32 %0, %1, %2, %3;"
      : "=l"(address)
      : "r"(count), "r"(bytes), "l"(reinterpret_cast<uint64_t>(base)));
  return reinterpret_cast<const char*>(address);
}

// The low word of an index of `bytes` bytes.
__device__ __forceinline__ int index_at(const void* indices, int i, int bytes) {
  return __ldg(reinterpret_cast<const int*>(at_step(indices, i, bytes)));
}

}  // namespace sparse_autotune
