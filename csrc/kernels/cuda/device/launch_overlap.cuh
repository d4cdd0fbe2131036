// A kernel that begins while the one before it on its stream ends: KernelCode's `overlaps`.
#pragma once

namespace sparse_autotune {

// From here on the launch before is over, and what it wrote may be read.
__device__ __forceinline__ void wait_for_launch_before() {
  asm volatile("griddepcontrol.wait;\n" ::: "memory");
}

// From here on the next launch may get ready, until it waits for this one's end.
__device__ __forceinline__ void let_next_launch_begin() {
  asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
}

// Both, right behind each other.
__device__ __forceinline__ void follow_launch_before() {
  asm volatile("griddepcontrol.wait;\ngriddepcontrol.launch_dependents;\n" ::: "memory");
}

}  // namespace sparse_autotune
