// TMA: the engine that copies boxes of tensors between global and shared memory.
//
// Elements of a box outside the tensor are loaded as zeros and not stored. One thread issues a
// copy. Coordinates count elements, the contiguous dimension first.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace sparse_autotune {

// Of what TMA swizzles, in shared memory.
constexpr int kLineBytes = 128, kLineHalves = 64, kSwizzleAlignment = 1024;
__device__ __forceinline__ uint32_t align_swizzled(uint32_t address) {
  return (address + kSwizzleAlignment - 1) & ~(kSwizzleAlignment - 1u);
}

// True for one thread of a warp whose threads all call it; unlike a comparison of lane numbers it
// tells the compiler that only one is active, which spares copies a loop over active threads.
__device__ __forceinline__ bool elect_one() {
  uint32_t elected;
  asm volatile(
      "{\n"
      ".reg .pred one;\n"
      "elect.sync _|one, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, one;\n"
      "}\n"
      : "=r"(elected));
  return elected != 0;
}

__device__ __forceinline__ void tma_prefetch_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];\n" ::"l"(&map) : "memory");
}

// Loads arrive as bytes at `barrier`.
__device__ __forceinline__ void tma_load(uint32_t to, const CUtensorMap& map, uint32_t barrier,
                                         int x, int y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4}], [%2];\n" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(x), "r"(y)
      : "memory");
}

__device__ __forceinline__ void tma_load(uint32_t to, const CUtensorMap& map, uint32_t barrier,
                                         int x, int y, int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5}], [%2];\n" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(z)
      : "memory");
}

__device__ __forceinline__ void tma_load(uint32_t to, const CUtensorMap& map, uint32_t barrier,
                                         int x, int y, int z, int w) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5, %6}], [%2];\n" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(w)
      : "memory");
}

// What L2 is told of lines that it may give up before all others.
__device__ __forceinline__ uint64_t evict_first() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;\n" : "=l"(policy));
  return policy;
}

// What threads wrote to shared memory becomes visible to the engine. Each writer calls it, before
// a barrier with the thread that issues the store.
__device__ __forceinline__ void tma_store_fence() {
  asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
}

__device__ __forceinline__ void tma_store_hinted(const CUtensorMap& map, uint32_t from,
                                                 uint64_t policy, int x, int y, int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group.L2::cache_hint "
      "[%0, {%2, %3, %4}], [%1], %5;\n"
      "cp.async.bulk.commit_group;\n" ::"l"(&map),
      "r"(from), "r"(x), "r"(y), "r"(z), "l"(policy)
      : "memory");
}

__device__ __forceinline__ void tma_store(const CUtensorMap& map, uint32_t from, int x, int y,
                                          int z, int w) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];\n"
      "cp.async.bulk.commit_group;\n" ::"l"(&map),
      "r"(from), "r"(x), "r"(y), "r"(z), "r"(w)
      : "memory");
}

// Adds floats of shared memory to global memory, without a tensor map.
__device__ __forceinline__ void tma_add(float* to, uint32_t from, int bytes) {
  asm volatile(
      "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;\n"
      "cp.async.bulk.commit_group;\n" ::"l"(to),
      "r"(from), "r"(bytes)
      : "memory");
}

// Waits until all but this thread's newest kPending stores have read their shared memory.
template <int kPending>
__device__ __forceinline__ void tma_store_wait() {
  asm volatile("cp.async.bulk.wait_group.read %0;\n" ::"n"(kPending) : "memory");
}

}  // namespace sparse_autotune
