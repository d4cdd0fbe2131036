// The kernel of sampled_wave_sm90: every thread block has one task, and all walk the terms of the
// sums together. One thread keeps TMA copies under way, two warpgroups multiply and store.
//
// A stage of the ring holds 64 terms of 128 rows of C, then of 128 columns of B, and of another 128
// of either where a task has two blocks.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/device/mbarrier.cuh"
#include "kernels/cuda/sampled/sampled_early_kernel.cuh"
#include "kernels/cuda/sampled/sampled_parts.cuh"
#include "kernels/cuda/sampled/sampled_pipeline.cuh"
#include "kernels/cuda/sampled/sampled_walk.cuh"
#include "kernels/cuda/sampled/sampled_wave_tasks.cuh"

namespace sparse_autotune {

constexpr int kWaveSide = 128;                      // of a block
constexpr int kSideBytes = kWaveSide * kLineBytes;  // of 64 terms of a side

// Blocks of a task, at most; stages of the ring.
template <int kMostBlocks, int kDepth>
struct WaveTile {
  using Indices = WaveIndices;
  using Scratch = WaveScratch;
  using Tasks = WaveTasks;
  static constexpr int kBlocks = kMostBlocks, kSide = kWaveSide, kStages = kDepth;
  static constexpr int kStageBytes = (1 + kBlocks) * kSideBytes;
  // L2 may give operands up first, which gains nothing with pairs.
  static constexpr bool kBriefly = kBlocks == 1;
  static_assert(kBlocks == 1 || kBlocks == 2, "a task has one block or two");

  static __device__ __forceinline__ void find(const WaveArguments& args, Scratch& scratch,
                                              Tasks& tasks) {
    const WaveFinder finder(args, scratch);
    const auto number = static_cast<int>(blockIdx.x);
    WaveTasks found;
    if constexpr (kBlocks == 1) {
      finder.find_block(number, found);
    } else {
      finder.find_pair(number, static_cast<int>(gridDim.x), found);
    }
    if (threadIdx.x % 32 == 0) tasks = found;
  }
};

// One thread.
template <typename Tile, bool kTerms>
__device__ __forceinline__ void produce_wave(const WaveArguments& args,
                                             const EarlyShared<Tile>& shared) {
  RingPlace<Tile::kStages> at;
  shared.for_tasks([&](const WaveTask& found, bool) {
    const WaveTask task = found;
    const bool of_row = task.kind == kOfARow, of_column = task.kind == kOfAColumn;
    const int bytes = (task.kind == kOneBlock ? 2 : 3) * kSideBytes;
    for_steps(args, 0, args.steps, [&](int term, int matrix) {
      const uint32_t full = shared.full(at.stage);
      uint32_t to = shared.stage(at.stage);
      const auto load_c = [&](int row) {
        load_lines<kTerms, Tile::kBriefly>(to, args.c, full, row * kWaveSide, term,
                                           args.c_batched ? matrix : 0);
        to += kSideBytes;
      };
      const auto load_b = [&](int column) {
        load_lines<kTerms, Tile::kBriefly>(to, args.b, full, column * kWaveSide, term,
                                           args.b_batched ? matrix : 0);
        to += kSideBytes;
      };
      mbarrier_wait(shared.empty(at.stage), at.parity ^ 1);
      mbarrier_arrive_expect(full, bytes);
      load_c(task.row[0]);
      if (Tile::kBlocks == 2 && of_column) load_c(task.row[1]);
      load_b(task.column[0]);
      if (Tile::kBlocks == 2 && of_row) load_b(task.column[1]);
      at.advance();
    });
  });
}

// A task of a warpgroup: 64 rows of C, or of each of two strips, by kWidth columns of B. `rows` and
// `columns`: where its own begin in a stage.
template <typename T, typename Tile, bool kTerms, int kStrips, int kWidth, typename Store>
__device__ __forceinline__ void do_wave_task(const EarlyShared<Tile>& shared, int consumer,
                                             uint32_t rows, uint32_t columns, int steps,
                                             bool confirmed, RingPlace<Tile::kStages>& at,
                                             Store&& store) {
  // Without a value to begin with they would hold registers from the kernel's start, and so for
  // each kind of task.
  float sum[kStrips * kWidth / 2] = {};
  walk_terms<T, Tile::kStages, kTerms, kStrips, kWidth>(shared, consumer, rows, columns, steps, at,
                                                        sum);
  if (!confirmed && !shared.confirmed()) return;
#pragma unroll
  for (int i = 0; i < kStrips * kWidth / 64; ++i) store(i, sum + 32 * i);
}

// A warpgroup.
template <typename T, typename Tile, bool kTerms>
__device__ __forceinline__ void consume_wave(const WaveArguments& args,
                                             const EarlyShared<Tile>& shared, int consumer) {
  RingPlace<Tile::kStages> at;
  const int own = consumer * 64;
  shared.for_tasks([&](const WaveTask& found, bool confirmed) {
    const WaveTask task = found;
    const auto store = [&](int block, int row, int column, const float* sum) {
      const int64_t line = static_cast<int64_t>(block) * kWaveSide + row;
      store_piece(static_cast<T*>(args.values) + line * kWaveSide + column, sum, kWaveSide);
    };
    const auto run = [&]<int kStrips, int kWidth>(std::integral_constant<int, kStrips>,
                                                  std::integral_constant<int, kWidth>,
                                                  uint32_t rows, uint32_t columns, auto&& each) {
      do_wave_task<T, Tile, kTerms, kStrips, kWidth>(shared, consumer, rows, columns, args.steps,
                                                     confirmed, at, each);
    };
    constexpr std::integral_constant<int, 1> kOne;
    constexpr std::integral_constant<int, 2> kTwo;
    constexpr std::integral_constant<int, 128> kSide;
    constexpr std::integral_constant<int, 256> kSides;
    if (task.kind == kOneBlock) {
      run(kOne, kSide, own * kLineBytes, kSideBytes,
          [&](int i, const float* sum) { store(task.block[0], own, i * 64, sum); });
    } else if constexpr (Tile::kBlocks == 2) {
      if (task.kind == kOfARow) {
        run(kOne, kSides, own * kLineBytes, kSideBytes,
            [&](int i, const float* sum) { store(task.block[i / 2], own, i % 2 * 64, sum); });
      } else {
        const int block = consumer == 0 ? task.block[0] : task.block[1];
        run(kTwo, kSide, consumer * kSideBytes, 2 * kSideBytes,
            [&](int i, const float* sum) { store(block, i / 2 * 64, i % 2 * 64, sum); });
      }
    }
  });
}

template <typename T, typename Tile, bool kTerms>
__global__ void __launch_bounds__(kThreads, 1)
    sampled_wave_kernel(const __grid_constant__ WaveArguments args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  run_early<Tile, kTerms>(
      args, [&](const EarlyShared<Tile>& shared) { produce_wave<Tile, kTerms>(args, shared); },
      [&](const EarlyShared<Tile>& shared, int consumer) {
        consume_wave<T, Tile, kTerms>(args, shared, consumer);
      });
#else
  __trap();
#endif
}

}  // namespace sparse_autotune
