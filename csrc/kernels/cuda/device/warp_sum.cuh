// Sums over a warp's lanes, by all of them.
#pragma once

namespace sparse_autotune {

// Of the lanes up to this one.
__device__ __forceinline__ int sum_up_to(int own) {
  int sum = own;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(~0u, sum, step);
    if (static_cast<int>(threadIdx.x % 32) >= step) sum += other;
  }
  return sum;
}

}  // namespace sparse_autotune
