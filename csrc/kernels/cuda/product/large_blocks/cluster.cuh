// A cluster: thread blocks that run at the same time on neighbouring multiprocessors, reach each
// other's shared memory and barriers, and may receive one TMA load together.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace sparse_autotune {

// The calling thread block's place in its cluster.
__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;\n" : "=r"(rank));
  return rank;
}

// The address in shared memory that `address` has in the cluster's thread block `rank`.
__device__ __forceinline__ uint32_t in_block(uint32_t address, uint32_t rank) {
  uint32_t there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;\n" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}

// All threads of the cluster's thread blocks; those that have ended count as arrived. Orders no
// memory but barriers that mbarrier_init_fence() has published.
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.relaxed;\nbarrier.cluster.wait;\n" ::: "memory");
}

// An arrival at the barrier of any thread block, by its address from in_block(): what this thread
// has read there may be written. Release at the cluster's scope would be a fence of the whole GPU,
// which in every step made products 1.6 times slower.
__device__ __forceinline__ void cluster_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];\n" ::"r"(barrier) : "memory");
}

// Writes to the shared memory of any thread block, and arrives there as 4 bytes at `barrier`.
__device__ __forceinline__ void cluster_store(uint32_t address, uint32_t value, uint32_t barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];\n" ::"r"(address),
      "r"(value), "r"(barrier)
      : "memory");
}

// Loads into the same place of every thread block in `blocks`, a bit set, and arrives as bytes at
// the same barrier of each.
__device__ __forceinline__ void tma_load_to(uint16_t blocks, uint32_t to, const CUtensorMap& map,
                                            uint32_t barrier, int x, int y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;\n" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(x), "r"(y), "h"(blocks)
      : "memory");
}

}  // namespace sparse_autotune
