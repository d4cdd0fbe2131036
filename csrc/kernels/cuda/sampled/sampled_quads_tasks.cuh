// What the thread blocks of sampled_quads_sm90 work on, and how they find it: each takes four
// stored blocks of 64x64 in turn, wherever rows end, or, of the few that lie in more than two rows,
// two twice.
#pragma once

#include <cstdint>

#include "kernels/cuda/sampled/sampled_early.cuh"

namespace sparse_autotune {

// Block rows and stored blocks, at most; blocks of a task, and lines of 64 that it may have.
constexpr int kQuadRows = 256, kQuadBlocks = 544;
constexpr int kQuad = 4, kQuadLines = 6;

using QuadIndices = PatternIndices<kQuadRows, kQuadBlocks>;
using QuadScratch = QuadIndices::Scratch;

// A consumer has the first or the last two of its pieces.
struct QuadTask {
  int rows, columns;              // different rows; columns, one for each block
  int line[kQuadLines];           // block rows, then block columns
  int pieces[2];                  // of a consumer
  int block[kQuad];               // in values
  int row[kQuad], column[kQuad];  // lines of the task
};

struct QuadTasks {
  int count;
  QuadTask task[2];
};

// By a whole warp, of indices put there: this thread block's tasks. Those that are no pattern give
// any tasks.
__device__ __forceinline__ void find_quads(const WaveArguments& args, const QuadScratch& scratch,
                                           QuadTasks& found) {
  constexpr int kStarts = kQuadRows / 32;
  const int lane = threadIdx.x % 32, first = static_cast<int>(blockIdx.x) * kQuad;
  const int blocks = min(args.blocks - first, kQuad);
  int row[kQuad];
#pragma unroll
  for (int j = 0; j < kQuad; ++j) {
    const int block = first + min(j, blocks - 1);
    int begun = 0;  // rows at or before the block's
#pragma unroll
    for (int i = 0; i < kStarts; ++i) {
      begun += __popc(__ballot_sync(~0u, scratch.start[i * 32 + lane] <= block));
    }
    row[j] = max(begun, 1) - 1;
  }
  if (lane != 0) return;
  found.count = 0;
  if (blocks <= 0) return;
  const auto describe = [&](QuadTask& task, int begin, int count) {
    task.rows = 0;
    const int firsts = min(count, 2);
    task.pieces[0] = firsts;
    task.pieces[1] = count - firsts;
    task.columns = count;
    int of_row[kQuad];
#pragma unroll
    for (int j = 0; j < kQuad; ++j) {
      if (j < begin || j >= begin + count) continue;
      if (j == begin || row[j] != row[max(j, 1) - 1]) task.line[task.rows++] = row[j];
      of_row[j] = task.rows - 1;
    }
#pragma unroll
    for (int j = 0; j < kQuad; ++j) {
      if (j < begin || j >= begin + count) continue;
      const int i = j - begin;
      task.line[task.rows + i] = scratch.column[first + j];
      task.block[i] = first + j;
      task.row[i] = of_row[j];
      task.column[i] = task.rows + i;
    }
    // Pieces that there are not: nobody stores them.
    for (int i = count; i < kQuad; ++i) {
      task.block[i] = task.row[i] = 0;
      task.column[i] = task.rows;
    }
  };
  const bool many = (row[0] != row[1]) + (row[1] != row[2]) + (row[2] != row[3]) > 1;
  describe(found.task[0], 0, many ? 2 : blocks);
  if (many) describe(found.task[1], 2, blocks - 2);
  found.count = many ? 2 : 1;
}

}  // namespace sparse_autotune
