// One index of a pattern, of either index type; an entry of what is planned or listed of its rows;
// and where a number belongs among a pattern's indices.
#pragma once

#include <cstdint>

#include "row_groups.h"

namespace sparse_autotune {

__device__ __forceinline__ int64_t load_index(const void* indices, int64_t i, bool wide) {
  return wide ? __ldg(static_cast<const long long*>(indices) + i)
              : __ldg(static_cast<const int*>(indices) + i);
}

// An index below 2^31: of a wide one the low word, without a branch.
__device__ __forceinline__ int load_narrow_index(const void* indices, int64_t i, bool wide) {
  return __ldg(static_cast<const int*>(indices) + (i << (wide ? 1 : 0)));
}

// An OrderedRow or a CutRow, at once.
template <typename Entry, typename Index>
__device__ __forceinline__ Entry load_entry(const Entry* entries, Index i) {
  const int4 found = __ldg(reinterpret_cast<const int4*>(entries) + i);
  return {found.x, found.y, found.z, found.w};
}

// The two rows of a matched pair; of one alone the second is -1.
__device__ __forceinline__ int2 load_pair(const int32_t* rows, int pair) {
  return __ldg(reinterpret_cast<const int2*>(rows) + pair);
}

// A block column and the group's rows with a block in it; of no row behind the last.
__device__ __forceinline__ int2 load_group_column(const GroupColumn* columns, int i, int end) {
  return i < end ? __ldg(reinterpret_cast<const int2*>(columns + i)) : int2{};
}

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
