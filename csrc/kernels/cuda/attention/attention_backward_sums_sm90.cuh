// Sums of dq, which are zeros before anything is added to them.
//
// The pass before clears those of the first head of k. The others are cleared while products are
// under way, as these leave memory idle: whoever copies the k and v of an item clears a part of a
// head ahead, so that zeros are still in L2 when dq is added to them.
#pragma once

#include <cstdint>

#include "kernels/cuda/attention/attention_backward_rows.cuh"

namespace sparse_autotune {

struct BackwardSums {
  float* sums;              // in the order of fragments: see attention_backward_rows.cuh
  int* cleared;             // how many parts of each head are; of the first one, how many are taken
  int heads, parts, tiles;  // of a head: parts, as many as it has items; tiles of 64 rows

  // Each by a whole warp.
  template <int kDim>
  __device__ __forceinline__ void clear_part() const {
    constexpr int kTile = 64 * kDim / 4;
    const int lane = threadIdx.x % 32;
    int part = 0;
    if (lane == 0) part = atomicAdd(cleared, 1);
    part = __shfl_sync(~0u, part, 0);
    const int head = 1 + part / parts;
    if (head >= heads) return;
    for (int tile = part % parts; tile < tiles; tile += parts) {
      auto* to = reinterpret_cast<float4*>(sums) + (int64_t{head} * tiles + tile) * kTile + lane;
#pragma unroll 4
      for (int i = 0; i < kTile; i += 32) to[i] = {};
    }
    __syncwarp();
    if (lane == 0) {
      asm volatile("red.release.gpu.global.add.s32 [%0], 1;\n" ::"l"(cleared + head) : "memory");
    }
  }

  // Whether a head's sums are zeros, or more, for whoever adds to them next.
  __device__ __forceinline__ bool are_cleared(int head) const {
    if (head == 0) return true;
    int done;
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];\n"
                 : "=r"(done)
                 : "l"(cleared + head)
                 : "memory");
    asm volatile("fence.proxy.async.global;\n" ::: "memory");
    return __all_sync(~0u, done == parts);
  }
};

}  // namespace sparse_autotune
