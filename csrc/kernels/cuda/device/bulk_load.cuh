// Bulk copies to shared memory.
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

}  // namespace sparse_autotune
