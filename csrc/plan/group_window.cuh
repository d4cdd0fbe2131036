// What the rows of a group store, as bits in shared memory, so that ranks are sums of set bits. A
// thread block owns a group; wide matrices take several windows of columns one after another.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "plan/pattern.h"
#include "row_groups.h"

namespace sparse_autotune {

constexpr int kMaxGroupRows = group_rows(kGroupings - 1);
constexpr int kWindowWords = 256, kWindowColumns = 32 * kWindowWords;
// Wider matrices are not worth the walk over their windows.
constexpr int64_t kMaxGroupedColumns = int64_t{1} << 24;

template <typename Index>
struct PatternArrays {
  const Index *crow, *col;
  int64_t block_rows, block_cols, nnzb;
};

template <typename Index>
PatternArrays<Index> arrays_of(const PatternKey& key) {
  return {static_cast<const Index*>(key.crow_indices), static_cast<const Index*>(key.col_indices),
          key.block_rows, key.block_cols, key.nnzb};
}

// A group's window. A thread block has a warp for each of its `rows` rows. Of a pattern that breaks
// rules the bits may be wrong, but nothing outside of it is read.
template <typename Index>
struct GroupWindow {
  uint32_t (*bits)[kWindowWords];  // of each row
  int rows, words;
  int64_t at = 0, end = 0;  // this warp's row: blocks behind this window

  // `row`: this warp's; outside of the pattern it has no blocks.
  __device__ GroupWindow(uint32_t (*memory)[kWindowWords], int group_rows, int64_t row,
                         const PatternArrays<Index>& p)
      : bits(memory), rows(group_rows), words(0) {
    if (row >= 0 && row < p.block_rows) {
      at = max(static_cast<int64_t>(p.crow[row]), int64_t{0});
      end = min(static_cast<int64_t>(p.crow[row + 1]), p.nnzb);
    }
  }

  static __device__ int warp() { return static_cast<int>(threadIdx.x / 32); }
  static __device__ int lane() { return static_cast<int>(threadIdx.x % 32); }

  // The bits of the window that begins at column `first`, the one behind the last that was loaded.
  __device__ void load(const PatternArrays<Index>& p, int64_t first) {
    const int64_t width = min(int64_t{kWindowColumns}, p.block_cols - first);
    words = static_cast<int>((width + 31) / 32);
    for (int i = lane(); i < words; i += 32) bits[warp()][i] = 0;
    __syncwarp();
    while (at < end) {
      const int64_t column = at + lane() < end ? p.col[at + lane()] - first : width;
      const bool inside = column < width;
      if (inside && column >= 0) {
        atomicOr(&bits[warp()][column / 32], 1u << (column % 32));
      }
      const uint32_t outside = __ballot_sync(~0u, !inside);
      at += outside != 0 ? __ffs(static_cast<int>(outside)) - 1 : 32;
      if (outside != 0) break;
    }
    __syncthreads();
  }

  // The columns of rows [from, from + count), counted by a warp.
  __device__ int columns_of(int from, int count) const {
    int sum = 0;
    for (int i = lane(); i < words; i += 32) {
      uint32_t all = 0;
      for (int row = from; row < from + count; ++row) all |= bits[row][i];
      sum += __popc(all);
    }
    return __reduce_add_sync(~0u, sum);
  }

  __device__ uint32_t any(int word) const {
    uint32_t all = 0;
    for (int row = 0; row < rows; ++row) all |= bits[row][word];
    return all;
  }
};

}  // namespace sparse_autotune
