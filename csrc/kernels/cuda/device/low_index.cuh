// Loads of indices by kernels whose numbers of blocks and columns fit 31 bits.
#pragma once

#include <cstdint>

namespace sparse_autotune {

// An int32, or the low half of an int64, whose high half is then known to be 0.
__device__ __forceinline__ int load_low_index(const void* indices, int64_t i, bool wide) {
  return __ldg(static_cast<const int*>(indices) + (wide ? 2 * i : i));
}

}  // namespace sparse_autotune
