// The hardware's barriers 1 to 15 of a thread block, for some of its warps; 0 is __syncthreads().
// Whole warps call these, and all that meet name the same number of threads.
#pragma once

namespace sparse_autotune {

template <int kThreads>
__device__ __forceinline__ void barrier_sync(int barrier) {
  asm volatile("bar.sync %0, %1;\n" ::"r"(barrier), "n"(kThreads) : "memory");
}

// Counts as one that has come, and goes on.
template <int kThreads>
__device__ __forceinline__ void barrier_arrive(int barrier) {
  asm volatile("bar.arrive %0, %1;\n" ::"r"(barrier), "n"(kThreads) : "memory");
}

}  // namespace sparse_autotune
