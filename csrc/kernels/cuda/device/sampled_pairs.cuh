// Tasks of two blocks that share as much as can be, for a sampled product's kernel.
//
// Two blocks of a row share C's rows; there are as many such pairs as a row allows. Rows of an odd
// number of blocks have one left. These rows are matched in turn, and where two have a column in
// common the blocks of that column are what each has left, and share B's. Otherwise it is the last
// block of each, and nothing is shared. So there is a task for every two blocks, whatever the
// pattern, and its number tells everybody which.
//
// Pairs come from row to row, matched rows behind them.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/load_index.cuh"
#include "kernels/cuda/device/sampled_tasks.cuh"

namespace sparse_autotune {

// What a whole warp knows of the block rows it goes through, in turn and some at a time. Numbers
// that are looked for never fall from call to call.
class PairFinder {
 public:
  __device__ __forceinline__ explicit PairFinder(const SampledArguments& args) : args_(args) {}

  // Fills in which rows, columns and values task `number` is about.
  template <typename Tile>
  __device__ __forceinline__ void find(unsigned number, SampledTask& task) {
    const auto strips = static_cast<unsigned>(args_.strips);
    for (; first_ < args_.block_rows; first_ += kRows) {
      const Found found = seek(first_, number - before_, [&](int blocks) {
        return static_cast<unsigned>(blocks / 2) * strips;
      });
      if (found.is_here) {
        const int blocks = found.row.blocks();
        const int strip = found.within / (blocks / 2), pair = found.within % (blocks / 2);
        int left = blocks;  // the block that is in no pair
        if (blocks % 2 != 0) {
          const bool later = (odd_before_ + found.odd_before) % 2 != 0;
          const Row other = later ? odd_row_before(found.row.row) : odd_row_after(found.row.row);
          left = later ? match(other, found.row).y : match(found.row, other).x;
        }
        const int a = 2 * pair, b = 2 * pair + 1;
        fill_pair<Tile>(found.row, strip, found.row.begin + a + (a >= left),
                        found.row.begin + b + (b >= left), task);
        return;
      }
      before_ += found.counted;
      odd_before_ += found.odd_before;
    }
    const unsigned matched = number - before_;
    for (;; matched_first_ += kRows) {
      const Found found = seek(matched_first_, matched / strips * 2 - matched_before_,
                               [](int blocks) { return static_cast<unsigned>(blocks % 2); });
      if (found.is_here) {
        fill_matched<Tile>(found.row, odd_row_after(found.row.row),
                           static_cast<int>(matched % strips), task);
        return;
      }
      matched_before_ += found.counted;
    }
  }

 private:
  static constexpr int kEach = 4, kRows = 32 * kEach;  // rows of a lane, of the warp

  struct Row {
    int row, begin, end;

    __device__ __forceinline__ int blocks() const { return end - begin; }
    __device__ __forceinline__ Row of(int lane) const {
      return {__shfl_sync(~0u, row, lane), __shfl_sync(~0u, begin, lane),
              __shfl_sync(~0u, end, lane)};
    }
  };

  static __device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x % 32); }

  __device__ __forceinline__ int column(int block) const {
    return load_narrow_index(args_.col_indices, block, args_.wide_indices);
  }
  // Without blocks where there is no such row.
  __device__ __forceinline__ Row load_row(int row) const {
    if (row < 0 || row >= args_.block_rows) return {row, 0, 0};
    return {row, load_narrow_index(args_.crow_indices, row, args_.wide_indices),
            load_narrow_index(args_.crow_indices, row + 1, args_.wide_indices)};
  }
  // What a number stands for among kRows rows, or how many they count; odd rows before it, or in
  // all.
  struct Found {
    bool is_here;
    Row row;
    int within, odd_before;
    unsigned counted;
  };
  template <typename F>
  __device__ __forceinline__ Found seek(int first, unsigned number, F&& count) const {
    int starts[kEach + 1];
#pragma unroll
    for (int i = 0; i <= kEach; ++i) {
      const int row = min(first + lane() * kEach + i, args_.block_rows);
      starts[i] = load_narrow_index(args_.crow_indices, row, args_.wide_indices);
    }
    unsigned counted = 0, odd = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int blocks = starts[i + 1] - starts[i];
      counted += count(blocks);
      odd += static_cast<unsigned>(blocks % 2);
    }
    unsigned sum = counted, odd_sum = odd;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const unsigned other = __shfl_up_sync(~0u, sum, step);
      const unsigned other_odd = __shfl_up_sync(~0u, odd_sum, step);
      if (lane() >= step) {
        sum += other;
        odd_sum += other_odd;
      }
    }
    const unsigned all = __shfl_sync(~0u, sum, 31), all_odd = __shfl_sync(~0u, odd_sum, 31);
    if (number >= all) return {false, {}, 0, static_cast<int>(all_odd), all};
    // In the first lane whose rows do not all come before; that lane knows in which row.
    const int at = __ffs(static_cast<int>(__ballot_sync(~0u, number < sum))) - 1;
    unsigned before = sum - counted, odd_before = odd_sum - odd;
    Found found{true, {}, 0, 0, all};
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int blocks = starts[i + 1] - starts[i];
      const unsigned here = count(blocks);
      if (number >= before && number < before + here) {
        found.row = {first + lane() * kEach + i, starts[i], starts[i + 1]};
        found.within = static_cast<int>(number - before);
        found.odd_before = static_cast<int>(odd_before);
      }
      before += here;
      odd_before += static_cast<unsigned>(blocks % 2);
    }
    found.row = found.row.of(at);
    found.within = __shfl_sync(~0u, found.within, at);
    found.odd_before = __shfl_sync(~0u, found.odd_before, at);
    return found;
  }

  __device__ __forceinline__ Row odd_row_after(int row) const {
    for (int first = row + 1; first < args_.block_rows; first += 32) {
      const Row mine = load_row(first + lane());
      const unsigned odd = __ballot_sync(~0u, mine.blocks() % 2 != 0);
      if (odd != 0) return mine.of(__ffs(static_cast<int>(odd)) - 1);
    }
    return {};
  }
  __device__ __forceinline__ Row odd_row_before(int row) const {
    for (int first = row - 1;; first -= 32) {
      const Row mine = load_row(first - lane());
      const unsigned odd = __ballot_sync(~0u, mine.blocks() % 2 != 0);
      if (odd != 0) return mine.of(__ffs(static_cast<int>(odd)) - 1);
    }
  }

  // Which block of each of two rows is in no pair; z: whether they are of the same column. Looks
  // at 32 blocks of each.
  __device__ __forceinline__ int3 match(const Row& a, const Row& b) const {
    const int mine = lane() < a.blocks() ? column(a.begin + lane()) : -1;
    const int others = lane() < b.blocks() ? column(b.begin + lane()) : -2;
    int found = -1;
    for (int i = 0; i < min(b.blocks(), 32); ++i) {
      if (mine == __shfl_sync(~0u, others, i)) found = i;
    }
    const unsigned common = __ballot_sync(~0u, found >= 0);
    if (common == 0) return {a.blocks() - 1, b.blocks() - 1, 0};
    const int at = __ffs(static_cast<int>(common)) - 1;
    return {at, __shfl_sync(~0u, found, at), 1};
  }

  __device__ __forceinline__ int64_t place_of(int block, int line, int column) const {
    return (static_cast<int64_t>(block) * args_.block_m + line) * args_.block_k + column;
  }

  template <typename Tile>
  __device__ __forceinline__ void fill_pair(const Row& row, int strip, int a, int b,
                                            SampledTask& task) const {
    const int line = strip * Tile::kRows, piece = lane() % 2 * 64;
    if (lane() < 4) {
      const int block = lane() < 2 ? a : b;
      task.column[lane()] = column(block) * args_.block_k + piece;
      task.place[lane()] = place_of(block, line, piece);
      task.strip[lane()] = 0;
    }
    if (lane() == 0) {
      task.row[0] = row.row * args_.block_m + line;
      task.strips = 1;
      task.pieces = task.each = 4;
      task.bent = 0;
    }
  }

  // Of two rows; the second has no blocks if the first is the last odd one.
  template <typename Tile>
  __device__ __forceinline__ void fill_matched(const Row& a, const Row& b, int strip,
                                               SampledTask& task) const {
    const int line = strip * Tile::kRows, piece = lane() % 2 * 64;
    const bool single = b.blocks() == 0;
    const int3 left = single ? make_int3(a.blocks() - 1, 0, 0) : match(a, b);
    const bool bent = left.z != 0;
    // Which of the blocks; of bent ones each consumer has one, in quarters.
    const int mine = single ? 0 : bent ? lane() / 4 : lane() / 2 % 2;
    const int block = mine == 0 ? a.begin + left.x : b.begin + left.y;
    if (lane() < (bent ? 8 : 4)) {
      task.place[lane()] = place_of(block, line + (bent ? lane() / 2 % 2 * 64 : 0), piece);
    }
    if (lane() < 4) {
      task.column[lane()] = column(block) * args_.block_k + piece;
      task.strip[lane()] = single ? 0 : lane() / 2;
    }
    if (lane() == 0) {
      task.row[0] = a.row * args_.block_m + line;
      task.row[1] = b.row * args_.block_m + line;
      task.strips = single ? 1 : 2;
      task.pieces = single || bent ? 2 : 4;
      task.each = single ? 2 : 4;
      task.bent = bent;
    }
  }

  const SampledArguments& args_;
  int first_ = 0, odd_before_ = 0;
  unsigned before_ = 0;  // tasks
  int matched_first_ = 0;
  unsigned matched_before_ = 0;  // rows
};

}  // namespace sparse_autotune
