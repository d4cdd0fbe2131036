// Another order of a tile's list of columns: one in which each block row comes upon its blocks at
// an even pace.
//
// Warps that own a block row each share a ring of stages. A stage is free again once all of them
// have passed it, so whoever finds many of its blocks among the next few columns holds up all
// others. A warp owns a tile: of the next 32 entries it takes the one that leaves the block rows
// nearest to their paces, again and again. Nothing waits for the host.
#include "kernels/cuda/attention/balanced_lists.h"

#include <cuda_runtime.h>

#include "kernels/cuda/host/cuda_status.h"

namespace sparse_autotune {
namespace {

constexpr unsigned kRowBits = (1u << kBalancedBlockRows) - 1;
constexpr int kBlock = 2048;      // what a block counts in leads and paces
constexpr int kNone = INT32_MAX;  // the key of a lane without an entry

// What lanes have of a block row each, summed up over those of `rows`.
__device__ __forceinline__ int sum_of(unsigned rows, int own) {
  return __reduce_add_sync(~0u, rows >> threadIdx.x & 1 ? own : 0);
}

// Keys are in the order of scores, and name the rows of the entry and the lane, too.
__device__ __forceinline__ int key_of(int score, unsigned rows) {
  constexpr int kMost = (1 << (26 - kBalancedBlockRows)) - 2, kLaneBits = 5;
  const int coarse = max(-kMost, min(kMost, score >> 4));
  return coarse << (kBalancedBlockRows + kLaneBits) |
         static_cast<int>(rows << kLaneBits | threadIdx.x);
}
struct Winner {
  int lane;
  unsigned rows;
  bool exists;
  __device__ __forceinline__ explicit Winner(int key)
      : lane(key & 31), rows(key >> 5 & kRowBits), exists(key != kNone) {}
};

// Lane i has block row i, and one of 32 entries. In each turn two of them are taken: the second
// as the first leaves it, so that the paces need an update for every other one only.
__global__ void __launch_bounds__(32)
    balance_lists_kernel(AttentionMask mask, int block_rows, int rows_of_tile, TileLists lists) {
  const int32_t* crow = mask.crow_indices + static_cast<int64_t>(blockIdx.y) * (block_rows + 1);
  const int lane = threadIdx.x, first = blockIdx.x * rows_of_tile;
  const int rows = min(rows_of_tile, block_rows - first);
  const int count = lists.counts[blockIdx.y * gridDim.x + blockIdx.x];
  if (count <= 2) return;
  int32_t* list = const_cast<int32_t*>(lists.entries) + crow[first];
  const auto entry_at = [&](int i) { return i < count ? static_cast<unsigned>(list[i]) : 0u; };

  const int blocks = lane < rows ? crow[first + lane + 1] - crow[first + lane] : 0;
  const int pace = static_cast<int>(int64_t{blocks} * kBlock / count);
  // How far the row is ahead of its pace; and half a block, less the pace: the least sum over an
  // entry's rows then belongs to the entry that leaves the least sum of squares.
  int lead = kBlock / 2 - pace;
  unsigned own = entry_at(lane), ahead = entry_at(lane + 32), later = entry_at(lane + 64);
  int score = 0, own_pace = 0;  // sums over the rows of this lane's entry
  const auto take_over = [&](int i, unsigned entry) {
    const int leads = sum_of(entry & kRowBits, lead), paces = sum_of(entry & kRowBits, pace);
    if (lane != i) return;
    own = entry;
    score = leads;
    own_pace = paces;
  };
  for (int i = 0; i < 32; ++i) take_over(i, __shfl_sync(~0u, own, i));
  for (int i = 0; i < count; i += 2) {
    const unsigned own_rows = own & kRowBits;
    const Winner one(__reduce_min_sync(~0u, own == 0 ? kNone : key_of(score, own_rows)));
    score += __popc(own_rows & one.rows) * kBlock;
    const bool gone = own == 0 || lane == one.lane;
    const Winner two(__reduce_min_sync(~0u, gone ? kNone : key_of(score, own_rows)));
    const unsigned rows_of_two = two.exists ? two.rows : 0;
    score += __popc(own_rows & rows_of_two) * kBlock - 2 * own_pace;
    lead +=
        static_cast<int>((one.rows >> lane & 1) + (rows_of_two >> lane & 1)) * kBlock - 2 * pace;
    if (lane == one.lane) list[i] = static_cast<int32_t>(own);
    if (two.exists && lane == two.lane) list[i + 1] = static_cast<int32_t>(own);
    const unsigned next = __shfl_sync(~0u, ahead, i % 32);
    const unsigned after = __shfl_sync(~0u, ahead, i % 32 + 1);
    take_over(one.lane, next);
    if (two.exists) take_over(two.lane, after);
    if (i % 32 == 30) {
      ahead = later;
      later = entry_at(i + 66 + lane);
    }
  }
}

}  // namespace

Status balance_lists(const AttentionMask& m, const AttentionShape& s, int tile_rows,
                     const TileLists& lists, void* stream) {
  const auto tiles = static_cast<unsigned>(ceil_div(s.rows, tile_rows));
  balance_lists_kernel<<<dim3(tiles, static_cast<unsigned>(m.patterns)), 32, 0,
                         static_cast<cudaStream_t>(stream)>>>(
      m, static_cast<int>(ceil_div(s.rows, m.block_m)), tile_rows / m.block_m, lists);
  return to_status(cudaGetLastError(), "balance_lists");
}

}  // namespace sparse_autotune
