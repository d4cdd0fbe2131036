// Equal shares of the blocks of 128 of a sampled product, as tasks of four pieces and of three.
//
// Where so many pieces as a thread block's share make no whole number of tasks of four, some of its
// tasks are of three: rows of blocks are cut into triples, of two tasks each, and pairs. Rows of an
// odd number of blocks get a triple first, so that hardly any block is left alone.
//
// Tasks of one size come first, then those of the next, each from row to row. All rows have about
// the same share of both, so that those that are worked on at a time are of few columns.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/cuda/device/load_index.cuh"
#include "kernels/cuda/device/warp_sum.cuh"
#include "kernels/cuda/sampled/sampled_early.cuh"

namespace sparse_autotune {

constexpr int kShareRows = 256;      // block rows, at most
constexpr int kShareBlocks = 32768;  // stored blocks, at most

struct ShareArguments : WaveArguments {
  CUtensorMap b_half;  // as b, of half of a block's lines
};

// A task: so many pieces, none where there is no such task.
struct ShareTask {
  int pieces;
  int row, piece;  // block row; the first piece, of all that there are
  int column[2];   // block columns of the first and of the last piece

  __device__ __forceinline__ bool operator==(const ShareTask& other) const {
    return pieces == other.pieces && row == other.row && piece == other.piece &&
           column[0] == other.column[0] && column[1] == other.column[1];
  }
};

// By a whole warp. Of indices that are no pattern it makes any tasks.
class ShareFinder {
 public:
  // For so many thread blocks.
  __device__ __forceinline__ ShareFinder(const ShareArguments& args, unsigned places)
      : args_(args) {
    const Rows rows(args);
    const unsigned share = (2 * static_cast<unsigned>(args.blocks) + places - 1) / places;
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
    int all_more, room = sum_before(more, all_more) / 2;
    const int rooms = all_more / 2, given = min(max(wanted - all_odd, 0) / 2, rooms);
    // As many of the rows before these; each row gets its share.
    const auto given_up_to = [&](int room) { return room * given / max(rooms, 1); };
    int own[kKinds] = {};
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int next = room + rows.room(i) / 2;
      triples_ += static_cast<uint64_t>(2 * (given_up_to(next) - given_up_to(room))) << 8 * i;
      room = next;
#pragma unroll
      for (int kind = 0; kind < kKinds; ++kind) own[kind] += tasks(rows, kind, i);
    }
#pragma unroll
    for (int kind = 0; kind < kKinds; ++kind) before_[kind] = sum_before(own[kind], all_[kind]);
  }

  __device__ __forceinline__ ShareTask find(int number) const {
    if (number >= all_[0] + all_[1] + all_[2]) return {};
    int kind = 0;
#pragma unroll
    for (int i = 0; i < kKinds - 1; ++i) {
      if (kind == i && number >= all_[i]) {
        number -= all_[i];
        ++kind;
      }
    }
    return find(kind, number);
  }

 private:
  static constexpr int kEach = kShareRows / 32;  // rows of a lane
  static constexpr int kKinds = 3;               // tasks of 4 pieces, of 3, of 2
  static constexpr int kMostTriples = 254;

  static __device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x % 32); }
  static __device__ __forceinline__ int sum_before(int own, int& all) {
    const int sum = sum_up_to(own);
    all = __shfl_sync(~0u, sum, 31);
    return sum - own;
  }

  // Those of a lane, which loads them anew each time: it has few registers.
  struct Rows {
    int start[kEach + 1];

    __device__ __forceinline__ explicit Rows(const ShareArguments& args) {
#pragma unroll
      for (int i = 0; i <= kEach; ++i) {
        start[i] = load_late_index(args.crow_indices, min(lane() * kEach + i, args.block_rows),
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

  // Of a kind that has so many.
  __device__ __forceinline__ ShareTask find(int kind, int number) const {
    const Rows rows(args_);
    int place = number - (kind == 0 ? before_[0] : kind == 1 ? before_[1] : before_[2]);
    int row = 0, piece = 0;
    bool mine = false;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int here = tasks(rows, kind, i);
      if (place >= 0 && place < here) {
        const int behind = 6 * triples(i);
        row = lane() * kEach + i;
        piece = 2 * rows.start[i] + (kind == 0   ? behind + 4 * place
                                     : kind == 1 ? 3 * place
                                                 : 2 * (rows.blocks(i) - 1));
        mine = true;
      }
      place -= here;
    }
    const unsigned finders = __ballot_sync(~0u, mine);
    if (finders == 0) return {};
    const int from = __ffs(static_cast<int>(finders)) - 1, pieces = 4 - kind;
    piece = __shfl_sync(~0u, piece, from);
    const auto column = [&](int i) {
      return load_late_index(args_.col_indices, max(0, min(i / 2, args_.blocks - 1)),
                             args_.wide_indices);
    };
    return {
        pieces, __shfl_sync(~0u, row, from), piece, {column(piece), column(piece + pieces - 1)}};
  }

  const ShareArguments& args_;
  uint64_t triples_ = 0;              // of this lane's rows, 8 bits each
  int before_[kKinds], all_[kKinds];  // tasks of all rows before these, and of all rows
};

}  // namespace sparse_autotune
