// Items at the end of a launch, where too few are left for all multiprocessors, are split along
// their columns. Each part leaves its sums in memory; who is last to come adds them up.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/attention/warp_softmax.cuh"

namespace sparse_autotune {

struct ItemParts {
  int whole = INT32_MAX;         // items before this one are not split
  int count = 1;                 // parts of each of the others
  float4* sums = nullptr;        // of parts
  unsigned* counters = nullptr;  // 0 before and after: a byte for each warp of each split item
};

// What a part leaves, in bytes, for a row of a head of `dim`: two threads' sums and softmax.
constexpr int64_t part_row_bytes(int64_t dim) { return 4 * (dim + 8); }
// Counters of an item of so many warps.
constexpr int part_counters_of(int warps) { return (warps + 3) / 4; }

// By a warp of `warps` that own an item's rows, with sums of kSets times 16 rows. Returns whether
// all parts have left theirs: then the sums are those of the whole item. Parts are added up in
// order, whoever is last.
template <int kSets, int kCount>
__device__ __forceinline__ bool add_up_parts(const ItemParts& parts, int part, int warp, int warps,
                                             float (*sum)[kCount], WarpSoftmax* softmax) {
  constexpr int kQuads = kCount / 4;
  const int lane = threadIdx.x % 32, item = part / parts.count;
  // Of a warp's sums, and of a set's, in what a part leaves.
  const auto place = [&](int part, int set) {
    return parts.sums + ((part * warps + warp) * kSets + set) * (kQuads + 1) * 32 + lane;
  };
#pragma unroll
  for (int set = 0; set < kSets; ++set) {
    float4* to = place(part, set);
    const WarpSoftmax& own = softmax[set];
    *to = make_float4(own.base[0], own.base[1], own.total[0], own.total[1]);
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      const float* four = sum[set] + 4 * i;
      to[32 * (i + 1)] = make_float4(four[0], four[1], four[2], four[3]);
    }
  }
  __threadfence();
  __syncwarp();
  unsigned* counter = parts.counters + item * part_counters_of(warps) + warp / 4;
  const int byte = warp % 4 * 8;
  unsigned before = 0;
  if (lane == 0) before = atomicAdd(counter, 1u << byte) >> byte & 255;
  if (__shfl_sync(~0u, before, 0) + 1 < static_cast<unsigned>(parts.count)) return false;
  if (lane == 0) atomicSub(counter, static_cast<unsigned>(parts.count) << byte);
  __threadfence();
#pragma unroll
  for (int set = 0; set < kSets; ++set) {
    WarpSoftmax& all = softmax[set];
    all.begin();
    for (int i = 0; i < parts.count; ++i) {
      const float4 own = __ldcg(place(item * parts.count + i, set));
      all.base[0] = fmaxf(all.base[0], own.x);
      all.base[1] = fmaxf(all.base[1], own.y);
    }
#pragma unroll
    for (float& x : sum[set]) x = 0;
#pragma unroll 1
    for (int i = 0; i < parts.count; ++i) {
      const float4* from = place(item * parts.count + i, set);
      const float4 own = __ldcg(from);
      const float shrink[2] = {power_of_two(own.x - all.base[0]),
                               power_of_two(own.y - all.base[1])};
      all.total[0] += own.z * shrink[0];
      all.total[1] += own.w * shrink[1];
#pragma unroll
      for (int j = 0; j < kQuads; ++j) {
        const float4 four = __ldcg(from + 32 * (j + 1));
        float* to = sum[set] + 4 * j;
        to[0] += four.x * shrink[0];
        to[1] += four.y * shrink[0];
        to[2] += four.z * shrink[1];
        to[3] += four.w * shrink[1];
      }
    }
  }
  return true;
}

}  // namespace sparse_autotune
