// A thread's registers, shared out anew among warpgroups: those that copy have more than they need,
// those that multiply fewer. Each thread of a warpgroup calls the same of these.
#pragma once

namespace sparse_autotune {

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
