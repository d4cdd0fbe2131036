// Sampled products of one wave of thread blocks: what a thread block can do while the launch before
// ends, of which it may use nothing until that launch is over.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/cuda/device/load_index.cuh"
#include "kernels/cuda/sampled/sampled_pipeline.cuh"

namespace sparse_autotune {

struct WaveArguments {
  // Boxes of a block's lines by 64 terms; with the batch as last dimension.
  CUtensorMap c, b;
  const void* crow_indices;
  const void* col_indices;
  void* values;
  int blocks, block_rows, block_columns;  // blocks: stored ones
  int steps, matrix_steps;                // of 64 terms: of all matrices of the batch, of one
  bool wide_indices, c_batched, b_batched;
};

// A pattern of at most so many rows and stored blocks, on its way from a warp's registers to its
// other lanes.
template <int kRows, int kBlocks>
struct PatternScratch {
  int start[kRows + 32], column[kBlocks];
};

// What a lane reads of the indices: all of a warp's are under way at once, and come from L2. They
// may be anything as long as whoever writes them is not done.
template <int kRows, int kBlocks>
struct PatternIndices {
  using Scratch = PatternScratch<kRows, kBlocks>;
  static constexpr int kStarts = kRows / 32 + 1, kColumns = kBlocks / 32;
  static_assert(kRows % 32 == 0 && kBlocks % 32 == 0, "a warp reads whole runs");
  int starts[kStarts], columns[kColumns];

  __device__ __forceinline__ explicit PatternIndices(const WaveArguments& args) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < kStarts; ++i) {
      starts[i] = load_late_index(args.crow_indices, min(i * 32 + lane, args.block_rows),
                                  args.wide_indices);
    }
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      columns[i] =
          load_late_index(args.col_indices, min(i * 32 + lane, args.blocks - 1), args.wide_indices);
    }
#pragma unroll
    for (int& start : starts) start = max(0, min(start, args.blocks));
  }

  __device__ __forceinline__ void put(Scratch& scratch) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < kStarts; ++i) scratch.start[i * 32 + lane] = starts[i];
#pragma unroll
    for (int i = 0; i < kColumns; ++i) scratch.column[i * 32 + lane] = columns[i];
    __syncwarp();
  }
  // By a whole warp: whether these are the ones put there.
  __device__ __forceinline__ bool are_those(const Scratch& scratch) const {
    const int lane = threadIdx.x % 32;
    bool same = true;
#pragma unroll
    for (int i = 0; i < kStarts; ++i) same = same && scratch.start[i * 32 + lane] == starts[i];
#pragma unroll
    for (int i = 0; i < kColumns; ++i) same = same && scratch.column[i * 32 + lane] == columns[i];
    return __all_sync(~0u, same);
  }
};

// By one warp: has L2 fetch the first steps of all lines, a part of them by each thread block.
template <int kSide, bool kTerms>
__device__ __forceinline__ void fetch_first_steps(const WaveArguments& args, int steps) {
  const int sides = args.block_rows + args.block_columns,
            all = min(steps, args.matrix_steps) * sides;
#pragma unroll 1
  for (auto i = static_cast<int>(blockIdx.x + threadIdx.x % 32 * gridDim.x); i < all;
       i += static_cast<int>(32 * gridDim.x)) {
    const int term = i / sides * kStepK, side = i % sides;
    if (side < args.block_rows) {
      fetch_lines<kTerms>(args.c, side * kSide, term);
    } else {
      fetch_lines<kTerms>(args.b, (side - args.block_rows) * kSide, term);
    }
  }
}

}  // namespace sparse_autotune
