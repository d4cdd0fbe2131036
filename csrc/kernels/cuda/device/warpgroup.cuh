// A warpgroup: its barrier, and its threads' registers, which are shared out anew: warpgroups that
// copy have more than they need, those that multiply fewer. All threads of one call the same of
// these.
#pragma once

#include "kernels/cuda/device/named_barrier.cuh"

namespace sparse_autotune {

constexpr int kWarpgroup = 128;

// Of the calling warpgroup's threads.
__device__ __forceinline__ void warpgroup_sync(int barrier) { barrier_sync<kWarpgroup>(barrier); }

template <int kLeft>
__device__ __forceinline__ void give_up_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(kLeft));
}

// Waits until others have given up as many.
template <int kThen>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(kThen));
}

}  // namespace sparse_autotune
