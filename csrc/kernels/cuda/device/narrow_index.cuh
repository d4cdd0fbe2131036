// Indices that fit 32 bits, stored in 32 or 64.
#pragma once

namespace sparse_autotune {

__device__ __forceinline__ int load_narrow_index(const void* indices, int i, bool wide) {
  return wide ? static_cast<int>(__ldg(static_cast<const long long*>(indices) + i))
              : __ldg(static_cast<const int*>(indices) + i);
}

}  // namespace sparse_autotune
