// Equal shares of the blocks of 128 of a sampled product, as tasks of four pieces and of three.
//
// Where so many pieces as a thread block's share make no whole number of tasks of four, some of its
// tasks are of three: rows of blocks are cut into triples, of two tasks each, and pairs. Rows of an
// odd number of blocks get a triple first, so that hardly any block is left alone.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/load_index.cuh"
#include "kernels/cuda/device/sampled_tasks.cuh"

namespace sparse_autotune {

constexpr int kShareRows = 256;      // block rows, at most
constexpr int kShareBlocks = 32768;  // stored blocks, at most

// By a whole warp.
class ShareFinder {
 public:
  // Pieces of a task, in order, and where they begin; none if there is no such task.
  struct Found {
    int row, begin, piece, pieces;  // begin: the row's first block; piece: the first, of the row's
  };

  // For so many thread blocks.
  __device__ __forceinline__ ShareFinder(const SampledArguments& args, unsigned places)
      : args_(args) {
    const Rows rows(args);
    const unsigned share = (args.pieces + places - 1) / places;
    const int wanted = static_cast<int>(((0u - share) % 4) * places / 2);  // triples
    int odd = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) odd += rows.is_odd(i);
    int all_odd, before = sum_before(odd, all_odd);
    int more = 0;  // two at a time
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (rows.is_odd(i) && before < wanted) triples_ |= uint64_t{1} << 8 * i;
      before += rows.is_odd(i);
      more += rows.room(i);
    }
    int all_more, left = max(wanted - all_odd, 0) - sum_before(more, all_more);
    int own[kKinds] = {};
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int possible = rows.room(i), given = max(0, min(left, possible)) & ~1;
      left -= possible;
      triples_ += static_cast<uint64_t>(given) << 8 * i;
#pragma unroll
      for (int kind = 0; kind < kKinds; ++kind) own[kind] += tasks(rows, kind, i);
    }
#pragma unroll
    for (int kind = 0; kind < kKinds; ++kind) before_[kind] = sum_before(own[kind], all_[kind]);
  }

  __device__ __forceinline__ Found find(int number) const {
    Found found{};
#pragma unroll
    for (int kind = 0; kind < kKinds; ++kind) {
      if (number >= 0 && number < all_[kind]) found = find(kind, number);
      number -= all_[kind];
    }
    return found;
  }
  __device__ __forceinline__ int tasks() const { return all_[0] + all_[1] + all_[2]; }

 private:
  static constexpr int kEach = kShareRows / 32;  // rows of a lane
  static constexpr int kKinds = 3;               // tasks of 4 pieces, of 3, of 2
  static constexpr int kMostTriples = 254;

  static __device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x % 32); }
  static __device__ __forceinline__ int sum_before(int own, int& all) {
    int sum = own;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(~0u, sum, step);
      if (lane() >= step) sum += other;
    }
    all = __shfl_sync(~0u, sum, 31);
    return sum - own;
  }

  // Those of a lane, which loads them anew each time: it has few registers.
  struct Rows {
    int start[kEach + 1];

    __device__ __forceinline__ explicit Rows(const SampledArguments& args) {
#pragma unroll
      for (int i = 0; i <= kEach; ++i) {
        start[i] = load_narrow_index(args.crow_indices, min(lane() * kEach + i, args.block_rows),
                                     args.wide_indices);
      }
    }
    __device__ __forceinline__ int blocks(int i) const { return start[i + 1] - start[i]; }
    __device__ __forceinline__ int is_odd(int i) const {
      return blocks(i) >= 3 ? blocks(i) % 2 : 0;
    }
    // Triples that it may have besides the one that an odd row gets.
    __device__ __forceinline__ int room(int i) const {
      return (min(blocks(i) / 3, kMostTriples) - is_odd(i)) & ~1;
    }
  };

  __device__ __forceinline__ int triples(int i) const {
    return static_cast<int>(triples_ >> 8 * i & 0xff);
  }
  __device__ __forceinline__ int tasks(const Rows& rows, int kind, int i) const {
    const int paired = rows.blocks(i) - 3 * triples(i);
    return kind == 0 ? paired / 2 : kind == 1 ? 2 * triples(i) : paired % 2;
  }

  __device__ __forceinline__ Found find(int kind, int number) const {
    Found found{};
    const Rows rows(args_);
    int first = before_[kind];
    bool mine = false;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int here = tasks(rows, kind, i), within = number - first;
      if (within >= 0 && within < here) {
        const int behind = 6 * triples(i);
        found = {lane() * kEach + i, rows.start[i],
                 kind == 0   ? behind + 4 * within
                 : kind == 1 ? 3 * within
                             : 2 * (rows.blocks(i) - 1),
                 4 - kind};
        mine = true;
      }
      first += here;
    }
    const int from = __ffs(static_cast<int>(__ballot_sync(~0u, mine))) - 1;
    return {__shfl_sync(~0u, found.row, from), __shfl_sync(~0u, found.begin, from),
            __shfl_sync(~0u, found.piece, from), __shfl_sync(~0u, found.pieces, from)};
  }

  const SampledArguments& args_;
  uint64_t triples_ = 0;              // of this lane's rows, 8 bits each
  int before_[kKinds], all_[kKinds];  // tasks of all rows before these, and of all rows
};

}  // namespace sparse_autotune
