// An index that a kernel reads while it may still overlap the launch before.
#pragma once

namespace sparse_autotune {

// ld.global.nc is faster, but of words that should stay the same from the kernel's start on, and
// ptxas may move it in front of griddepcontrol.wait, where the launch before still writes them. It
// did where launch_dependents does not stand right behind: there loads are plain (kPlain).
template <bool kPlain>
__device__ __forceinline__ int load_index_word(const char* from) {
  if constexpr (!kPlain) return __ldg(reinterpret_cast<const int*>(from));
  int word;
  asm volatile("ld.global.s32 %0, [%1];\n" : "=r"(word) : "l"(from));
  return word;
}

}  // namespace sparse_autotune
