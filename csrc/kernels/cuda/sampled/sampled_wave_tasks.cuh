// What the thread blocks of sampled_wave_sm90 work on, and how they find it.
//
// Each takes one stored block or two that share C's rows or B's columns. Two blocks of a row make a
// pair, as many as the row allows. Rows of an odd number of blocks have one left; these rows are
// matched in turn, and where two have a column in common the blocks of that column are what each
// has left. Where they have none, thread blocks that have no pair take over one of the two.
#pragma once

#include "kernels/cuda/device/warp_sum.cuh"
#include "kernels/cuda/sampled/sampled_early.cuh"

namespace sparse_autotune {

constexpr int kWaveRows = 256, kWaveBlocks = 288;  // block rows and stored blocks, at most

enum WaveKind : int { kOneBlock, kOfARow, kOfAColumn };

// The last of rows, columns and blocks is the first again where there is only one.
struct WaveTask {
  WaveKind kind;
  int row[2], column[2], block[2];  // block rows, block columns, blocks in values
};

struct WaveTasks {
  int count;
  WaveTask task[2];
};

struct WaveScratch : PatternScratch<kWaveRows, kWaveBlocks> {
  int odd[kWaveRows];  // rows of an odd number of blocks
};
using WaveIndices = PatternIndices<kWaveRows, kWaveBlocks>;

// By a whole warp, of indices put there. Those that are no pattern give any tasks.
class WaveFinder {
 public:
  __device__ __forceinline__ WaveFinder(const WaveArguments& args, WaveScratch& scratch)
      : args_(args), scratch_(scratch) {
#pragma unroll
    for (int i = 0; i <= kEach; ++i) start_[i] = scratch.start[lane() * kEach + i];
    int own = 0;  // pairs, and odd rows in the upper half
#pragma unroll
    for (int i = 0; i < kEach; ++i) own += counted(i);
    up_to_ = sum_up_to(own);
    before_ = up_to_ - own;
    const int all = __shfl_sync(~0u, up_to_, 31);
    pairs_ = all & 0xffff;
    odd_ = all >> 16;
    int place = before_ >> 16;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (counted(i) >> 16 != 0) scratch.odd[place++] = lane() * kEach + i;
    }
    __syncwarp();
  }

  // One block for each thread block; neighbours have two of a row where they can.
  __device__ __forceinline__ void find_block(int number, WaveTasks& found) const {
    found.count = number < args_.blocks ? 1 : 0;
    if (found.count == 0) return;
    if (number >= 2 * pairs_) {
      const int row = odd_row(number - 2 * pairs_);
      found.task[0] = one(row, end_of(row) - 1);
      return;
    }
    const Place place = pair(number / 2);
    found.task[0] = one(place.row, scratch_.start[place.row] + 2 * place.pair + number % 2);
  }

  // Two blocks for each of the first thread blocks; of `all` that there are.
  __device__ __forceinline__ void find_pair(int number, int all, WaveTasks& found) const {
    const int whole = pairs_ + (odd_ + 1) / 2;
    found.count = 1;
    if (number < pairs_) {
      const Place place = pair(number);
      const int row = place.row, begin = scratch_.start[row];
      int left = end_of(row);  // the block that is in no pair
      if ((left - begin) % 2 != 0) {
        const Match match = match_of(place.odd_before / 2);
        left = place.odd_before % 2 == 0 ? match.first : match.second;
      }
      const int a = begin + 2 * place.pair, b = a + 1;
      const int first = a + (a >= left), second = b + (b >= left);
      found.task[0] = {kOfARow, {row, row}, {column(first), column(second)}, {first, second}};
      return;
    }
    if (number < whole) {
      const int i = number - pairs_;
      const Match match = match_of(i);
      const int row = odd_row(2 * i);
      if (match.second < 0) {
        found.task[0] = one(row, match.first);
        return;
      }
      const int other = odd_row(2 * i + 1);
      if (match.shared) {
        const int shared = column(match.first);
        found.task[0] = {kOfAColumn, {row, other}, {shared, shared}, {match.first, match.second}};
        return;
      }
      found.task[0] = one(row, match.first);
      if (unmatched_before(i) < all - whole) return;
      found.task[1] = one(other, match.second);
      found.count = 2;
      return;
    }
    // The second of two that share nothing.
    int wanted = number - whole;
#pragma unroll 1
    for (int i = 0; i < odd_ / 2; ++i) {
      const Match match = match_of(i);
      if (match.shared || wanted-- > 0) continue;
      found.task[0] = one(odd_row(2 * i + 1), match.second);
      return;
    }
    found.count = 0;
  }

 private:
  static constexpr int kEach = kWaveRows / 32;  // rows of a lane

  struct Place {
    int row, pair, odd_before;  // pair: of the row's; odd_before: odd rows before it
  };
  // Blocks that two odd rows have left; second is -1 where there is but one row.
  struct Match {
    int first, second;
    bool shared;
  };

  static __device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x % 32); }
  // Of this lane's row i: its pairs, and in the upper half whether its blocks are odd in number.
  __device__ __forceinline__ int counted(int i) const {
    const int blocks = max(start_[i + 1] - start_[i], 0);
    return blocks / 2 + (blocks % 2 << 16);
  }
  __device__ __forceinline__ int end_of(int row) const { return scratch_.start[row + 1]; }
  __device__ __forceinline__ int column(int block) const {
    return scratch_.column[min(block, kWaveBlocks - 1)];
  }
  __device__ __forceinline__ int odd_row(int i) const { return scratch_.odd[i] & (kWaveRows - 1); }
  __device__ __forceinline__ WaveTask one(int row, int block) const {
    const int at = column(block);
    return {kOneBlock, {row, row}, {at, at}, {block, block}};
  }

  __device__ __forceinline__ Place pair(int number) const {
    const int in_lane = __ffs(__ballot_sync(~0u, number < (up_to_ & 0xffff))) - 1;
    int before = before_;
    Place found{};
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int here = counted(i), within = number - (before & 0xffff);
      if (within >= 0 && within < (here & 0xffff)) {
        found = {lane() * kEach + i, within, before >> 16};
      }
      before += here;
    }
    return {__shfl_sync(~0u, found.row, in_lane), __shfl_sync(~0u, found.pair, in_lane),
            __shfl_sync(~0u, found.odd_before, in_lane)};
  }

  // Of odd rows 2 i and 2 i + 1. Looks at 32 blocks of the first.
  __device__ __forceinline__ Match match_of(int i) const {
    const int row = odd_row(2 * i), begin = scratch_.start[row], end = end_of(row);
    if (2 * i + 1 == odd_) return {end - 1, -1, false};
    const int other = odd_row(2 * i + 1), other_end = end_of(other);
    const int mine = begin + lane() < end ? column(begin + lane()) : -1;
    int found = -1;
#pragma unroll 8
    for (int j = scratch_.start[other]; j < other_end; ++j) {
      if (column(j) == mine) found = j;
    }
    const unsigned common = __ballot_sync(~0u, found >= 0);
    if (common == 0) return {end - 1, other_end - 1, false};
    const int at = __ffs(static_cast<int>(common)) - 1;
    return {begin + at, __shfl_sync(~0u, found, at), true};
  }
  __device__ __forceinline__ int unmatched_before(int i) const {
    int unmatched = 0;
#pragma unroll 1
    for (int k = 0; k < i; ++k) unmatched += match_of(k).shared ? 0 : 1;
    return unmatched;
  }

  const WaveArguments& args_;
  const WaveScratch& scratch_;
  int start_[kEach + 1];  // of this lane's rows
  int before_, up_to_;    // as counted(), of all rows before and up to these
  int pairs_, odd_;       // of all rows
};

}  // namespace sparse_autotune
