// Where a number belongs among a pattern's indices: by a warp, which divides what is left.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/load_index.cuh"

namespace sparse_autotune {

// How many of `count` ascending indices from `begin` on are less than `bound`.
__device__ __forceinline__ int indices_below(const void* indices, int64_t begin, int count,
                                             int bound, bool wide) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int low = 0, high = count;
  while (low < high) {
    const int step = (high - low + 31) / 32, probe = low + (lane + 1) * step - 1;
    const bool below = probe < high && load_narrow_index(indices, begin + probe, wide) < bound;
    low += __popc(__ballot_sync(~0u, below)) * step;
    high = min(high, low + step - 1);
  }
  return low;
}

}  // namespace sparse_autotune
