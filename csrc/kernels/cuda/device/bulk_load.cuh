// Bulk copies to shared memory, and loads of words from there.
#pragma once

#include <cstdint>

namespace sparse_autotune {

// Without a tensor map. Bytes arrive at `barrier`.
__device__ __forceinline__ void bulk_load(uint32_t to, const void* from, int bytes,
                                          uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
      "[%3];\n" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}

template <int kWords>
__device__ __forceinline__ void load_shared(uint32_t* to, uint32_t from) {
  if constexpr (kWords == 4) {
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from));
  } else {
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];\n" : "=r"(to[0]), "=r"(to[1]) : "r"(from));
  }
}

}  // namespace sparse_autotune
