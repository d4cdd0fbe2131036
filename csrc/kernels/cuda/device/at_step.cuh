// An address some steps on, in one instruction.
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

}  // namespace sparse_autotune
