// One index of a pattern, of either index type.
#pragma once

#include <cstdint>

namespace sparse_autotune {

__device__ __forceinline__ int64_t load_index(const void* indices, int64_t i, bool wide) {
  return wide ? __ldg(static_cast<const long long*>(indices) + i)
              : __ldg(static_cast<const int*>(indices) + i);
}

// An index below 2^31: of a wide one the low word, without a branch.
__device__ __forceinline__ int load_narrow_index(const void* indices, int64_t i, bool wide) {
  return __ldg(static_cast<const int*>(indices) + (i << (wide ? 1 : 0)));
}

}  // namespace sparse_autotune
