// The kernel of sampled_quads_sm90: every thread block has one task, and all walk the terms of the
// sums together. One thread keeps TMA copies under way, two warpgroups multiply two blocks each.
//
// A stage of the ring holds 64 terms of each of a task's rows of blocks of C, then of each of its
// columns of blocks of B.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/mbarrier.cuh"
#include "kernels/cuda/sampled/sampled_early_kernel.cuh"
#include "kernels/cuda/sampled/sampled_parts.cuh"
#include "kernels/cuda/sampled/sampled_pipeline.cuh"
#include "kernels/cuda/sampled/sampled_quads_tasks.cuh"
#include "kernels/cuda/sampled/sampled_walk.cuh"

namespace sparse_autotune {

struct QuadTile {
  using Indices = QuadIndices;
  using Scratch = QuadScratch;
  using Tasks = QuadTasks;
  static constexpr int kSide = 64, kStages = 4, kStageBytes = kQuadLines * kPieceBytes;

  static __device__ __forceinline__ void find(const WaveArguments& args, Scratch& scratch,
                                              Tasks& tasks) {
    find_quads(args, scratch, tasks);
  }
};
using QuadShared = EarlyShared<QuadTile>;

// One thread.
template <bool kTerms>
__device__ __forceinline__ void produce_quads(const WaveArguments& args, const QuadShared& shared) {
  RingPlace<QuadTile::kStages> at;
  shared.for_tasks([&](const QuadTask& task, bool) {
    const int rows = task.rows, lines = rows + task.columns;
    int line[kQuadLines];
#pragma unroll
    for (int i = 0; i < kQuadLines; ++i) line[i] = i < lines ? task.line[i] * QuadTile::kSide : 0;
    for_steps(args, 0, args.steps, [&](int term, int matrix) {
      const uint32_t full = shared.full(at.stage), to = shared.stage(at.stage);
      mbarrier_wait(shared.empty(at.stage), at.parity ^ 1);
      mbarrier_arrive_expect(full, lines * kPieceBytes);
#pragma unroll
      for (int i = 0; i < kQuadLines; ++i) {
        if (i < rows) {
          load_lines<kTerms>(to + i * kPieceBytes, args.c, full, line[i], term,
                             args.c_batched ? matrix : 0);
        } else if (i < lines) {
          load_lines<kTerms>(to + i * kPieceBytes, args.b, full, line[i], term,
                             args.b_batched ? matrix : 0);
        }
      }
      at.advance();
    });
  });
}

// The two pieces of a warpgroup, multiplied by one instruction if they are `kJoined`: side by side
// in one row.
template <typename T, bool kTerms, bool kJoined, typename Store>
__device__ __forceinline__ void do_quad(const QuadShared& shared, const int (&row)[2],
                                        const int (&column)[2], int steps, bool confirmed,
                                        RingPlace<QuadTile::kStages>& at, Store&& store) {
  // Without a value to begin with they would hold registers from the kernel's start, and so for
  // each kind of task.
  float sum[64] = {};
  constexpr int kPieces = kJoined ? 2 : 1, kWidth = kPieces * 64;
  const auto multiply = [&](uint32_t stage) {
#pragma unroll
    for (int i = 0; i < 2; i += kPieces) {
      wgmma::multiply_lines<T, kWidth, !kTerms, !kTerms>(
          reinterpret_cast<float(&)[kWidth / 2]>(sum[i * 32]), stage + row[i] * kPieceBytes,
          stage + column[i] * kPieceBytes);
    }
  };
  const uint32_t last = walk_stages(
      shared, steps, at, [](int) {}, multiply);
  end_walk(shared, last, sum);
  if (!confirmed && !shared.confirmed()) return;
#pragma unroll
  for (int i = 0; i < 2; ++i) store(i, sum + 32 * i);
}

// A warpgroup.
template <typename T, bool kTerms>
__device__ __forceinline__ void consume_quads(const WaveArguments& args, const QuadShared& shared,
                                              int consumer) {
  RingPlace<QuadTile::kStages> at;
  shared.for_tasks([&](const QuadTask& task, bool confirmed) {
    const int row[2] = {task.row[2 * consumer], task.row[2 * consumer + 1]};
    const int column[2] = {task.column[2 * consumer], task.column[2 * consumer + 1]};
    const auto store = [&](int i, const float* sum) {
      if (i >= task.pieces[consumer]) return;
      const auto place = static_cast<int64_t>(task.block[2 * consumer + i]);
      store_piece(static_cast<T*>(args.values) + place * (QuadTile::kSide * QuadTile::kSide), sum,
                  QuadTile::kSide);
    };
    if (row[0] == row[1] && column[0] + 1 == column[1]) {
      do_quad<T, kTerms, true>(shared, row, column, args.steps, confirmed, at, store);
    } else {
      do_quad<T, kTerms, false>(shared, row, column, args.steps, confirmed, at, store);
    }
  });
}

template <typename T, bool kTerms>
__global__ void __launch_bounds__(kThreads, 1)
    sampled_quads_kernel(const __grid_constant__ WaveArguments args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  run_early<QuadTile, kTerms>(
      args, [&](const QuadShared& shared) { produce_quads<kTerms>(args, shared); },
      [&](const QuadShared& shared, int consumer) {
        consume_quads<T, kTerms>(args, shared, consumer);
      });
#else
  __trap();
#endif
}

}  // namespace sparse_autotune
