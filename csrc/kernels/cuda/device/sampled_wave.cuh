// The kernel of sampled_wave_sm90: every thread block has one task, and all walk the terms of the
// sums together. One thread keeps TMA copies under way, two warpgroups multiply and store.
//
// A stage of the ring holds 64 terms of 128 rows of C, then of 128 columns of B, and of another 128
// of either where a task has two blocks.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/device/mbarrier.cuh"
#include "kernels/cuda/device/sampled_early.cuh"
#include "kernels/cuda/device/sampled_parts.cuh"
#include "kernels/cuda/device/sampled_pipeline.cuh"
#include "kernels/cuda/device/sampled_walk.cuh"
#include "kernels/cuda/device/sampled_wave_tasks.cuh"
#include "kernels/cuda/device/tma.cuh"

namespace sparse_autotune {

constexpr int kWaveSide = 128;                      // of a block
constexpr int kSideBytes = kWaveSide * kLineBytes;  // of 64 terms of a side

// The tasks by indices as they were before the launch ahead was over; whether that changed none,
// and the tasks if it did.
struct WaveNotes {
  WaveTasks tasks[2];
  bool confirmed;
  WaveScratch scratch;
};

// Blocks of a task, at most; stages of the ring.
template <int kMostBlocks, int kDepth>
struct WaveTile {
  static constexpr int kBlocks = kMostBlocks, kStages = kDepth;
  // L2 may give operands up first, which gains nothing with pairs.
  static constexpr bool kBriefly = kBlocks == 1;
  static constexpr int kStageBytes = (1 + kBlocks) * kSideBytes;
  static constexpr int kRingBytes = kStages * kStageBytes;
  static constexpr int kReaders = 4 * kConsumers;  // warps
  static constexpr int kSharedBytes =
      kTileAlignment + kRingBytes + (2 * kStages + 1) * 8 + static_cast<int>(sizeof(WaveNotes));
  static_assert(kBlocks == 1 || kBlocks == 2);
};

template <typename Tile>
struct WaveShared {
  uint32_t ring, barriers;
  WaveNotes* notes;

  __device__ __forceinline__ explicit WaveShared(char* memory) {
    const auto begin = static_cast<uint32_t>(__cvta_generic_to_shared(memory));
    ring = (begin + kTileAlignment - 1) & ~static_cast<uint32_t>(kTileAlignment - 1);
    barriers = ring + Tile::kRingBytes;
    notes = reinterpret_cast<WaveNotes*>(memory + (checked() + 8 - begin));
  }
  __device__ __forceinline__ uint32_t stage(uint32_t i) const {
    return ring + i * Tile::kStageBytes;
  }
  __device__ __forceinline__ uint32_t full(uint32_t i) const { return barriers + i * 8; }
  __device__ __forceinline__ uint32_t empty(uint32_t i) const { return full(Tile::kStages + i); }
  __device__ __forceinline__ uint32_t checked() const { return full(2 * Tile::kStages); }
  __device__ __forceinline__ bool confirmed() const {
    mbarrier_wait(checked(), 0);
    return notes->confirmed;
  }
  __device__ __forceinline__ void init_barriers() const {
    for (int i = 0; i < Tile::kStages; ++i) {
      mbarrier_init(full(i), 1);
      mbarrier_init(empty(i), Tile::kReaders);
    }
    mbarrier_init(checked(), 32);
    mbarrier_init_fence();
  }
};

// By one warp: this thread block's tasks, of indices that are in shared memory.
template <typename Tile>
__device__ __forceinline__ void find_wave_tasks(const WaveArguments& args,
                                                const WaveShared<Tile>& shared, WaveTasks& tasks) {
  const WaveFinder finder(args, shared.notes->scratch);
  const auto number = static_cast<int>(blockIdx.x);
  WaveTasks found;
  if constexpr (Tile::kBlocks == 1) {
    finder.find_block(number, found);
  } else {
    finder.find_pair(number, static_cast<int>(gridDim.x), found);
  }
  if (threadIdx.x % 32 == 0) tasks = found;
}

// By one warp, once the launch ahead is over: whether the tasks are right, while they are under
// way.
template <typename Tile>
__device__ __forceinline__ void check_wave_tasks(const WaveArguments& args,
                                                 const WaveShared<Tile>& shared) {
  const WaveIndices indices(args);
  const bool same = indices.are_those(shared.notes->scratch);
  if (!same) {
    indices.put(shared.notes->scratch);
    find_wave_tasks(args, shared, shared.notes->tasks[1]);
  }
  if (threadIdx.x % 32 == 0) shared.notes->confirmed = same;
  mbarrier_arrive(shared.checked());
}

// One thread.
template <typename Tile, bool kTermsC, bool kTermsB>
__device__ __forceinline__ void produce_wave(const WaveArguments& args,
                                             const WaveShared<Tile>& shared) {
  RingPlace<Tile::kStages> at;
  const auto produce = [&](const WaveTask& task) {
    const bool of_row = task.kind == kOfARow, of_column = task.kind == kOfAColumn;
    const int bytes = (task.kind == kOneBlock ? 2 : 3) * kSideBytes;
    int step = 0, matrix = 0;
    for (int left = args.steps; left > 0; --left) {
      const uint32_t full = shared.full(at.stage);
      const int term = step * kStepK;
      uint32_t to = shared.stage(at.stage);
      const auto load_c = [&](int row) {
        load_lines<kTermsC, Tile::kBriefly>(to, args.c, full, row * kWaveSide, term,
                                            args.c_batched ? matrix : 0);
        to += kSideBytes;
      };
      const auto load_b = [&](int column) {
        load_lines<kTermsB, Tile::kBriefly>(to, args.b, full, column * kWaveSide, term,
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
      if (++step == args.matrix_steps) {
        step = 0;
        ++matrix;
      }
    }
  };
#pragma unroll 1
  for (int round = 0; round < 2; ++round) {
    const WaveTasks& tasks = shared.notes->tasks[round];
#pragma unroll 1
    for (int i = 0; i < tasks.count; ++i) produce(WaveTask(tasks.task[i]));
    if (shared.confirmed()) return;
  }
}

// A task of a warpgroup: 64 rows of C, or of each of two strips, by kWidth columns of B. `rows` and
// `columns`: where its own begin in a stage.
template <typename T, typename Tile, bool kTermsC, bool kTermsB, int kStrips, int kWidth,
          typename Store>
__device__ __forceinline__ void do_wave_task(const WaveShared<Tile>& shared, int consumer,
                                             uint32_t rows, uint32_t columns, int steps,
                                             bool confirmed, RingPlace<Tile::kStages>& at,
                                             Store&& store) {
  // Without a value to begin with they would hold registers from the kernel's start, and so for
  // each kind of task.
  float sum[kStrips * kWidth / 2] = {};
  walk_terms<T, Tile::kStages, kTermsC, kTermsB, kStrips, kWidth>(shared, consumer, rows, columns,
                                                                  steps, at, sum);
  if (!confirmed && !shared.confirmed()) return;
#pragma unroll
  for (int i = 0; i < kStrips * kWidth / 64; ++i) store(i, sum + 32 * i);
}

// A warpgroup.
template <typename T, typename Tile, bool kTermsC, bool kTermsB>
__device__ __forceinline__ void consume_wave(const WaveArguments& args,
                                             const WaveShared<Tile>& shared, int consumer) {
  RingPlace<Tile::kStages> at;
  const int own = consumer * 64;
  const auto consume = [&](const WaveTask& task, bool confirmed) {
    const auto store = [&](int block, int row, int column, const float* sum) {
      const int64_t line = static_cast<int64_t>(block) * kWaveSide + row;
      store_piece(static_cast<T*>(args.values) + line * kWaveSide + column, sum, kWaveSide);
    };
    const auto run = [&]<int kStrips, int kWidth>(std::integral_constant<int, kStrips>,
                                                  std::integral_constant<int, kWidth>,
                                                  uint32_t rows, uint32_t columns, auto&& each) {
      do_wave_task<T, Tile, kTermsC, kTermsB, kStrips, kWidth>(shared, consumer, rows, columns,
                                                               args.steps, confirmed, at, each);
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
  };
#pragma unroll 1
  for (int round = 0; round < 2; ++round) {
    const WaveTasks& tasks = shared.notes->tasks[round];
#pragma unroll 1
    for (int i = 0; i < tasks.count; ++i) consume(WaveTask(tasks.task[i]), round > 0);
    if (shared.confirmed()) return;
  }
}

template <typename T, typename Tile, bool kTermsC, bool kTermsB>
__global__ void __launch_bounds__(kThreads, 1)
    sampled_wave_kernel(const __grid_constant__ WaveArguments args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ char memory[];
  const WaveShared<Tile> shared(memory);
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  if (threadIdx.x == 0) {
    tma_prefetch_map(args.c);
    tma_prefetch_map(args.b);
    shared.init_barriers();
  }
  // The launch before this one may not be over yet. L2 may fetch what that has still to write, and
  // tasks are found by indices that it may still change: check_wave_tasks sees to that.
  if (warp == 3) fetch_first_steps<kWaveSide, kTermsC, kTermsB>(args, Tile::kStages);
  if (warp == 0) {
    WaveIndices(args).put(shared.notes->scratch);
    find_wave_tasks(args, shared, shared.notes->tasks[0]);
  }
  // The next one may get ready from here on.
  asm volatile("griddepcontrol.wait;\ngriddepcontrol.launch_dependents;\n" ::: "memory");
  __syncthreads();
  // 72 + 2 * 216 registers for a thread of each warpgroup: the 3 * 168 that were launched.
  if (warp < 4) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 72;\n");
    if (warp == 0 && elect_one()) produce_wave<Tile, kTermsC, kTermsB>(args, shared);
    if (warp == 1) check_wave_tasks(args, shared);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 216;\n");
    consume_wave<T, Tile, kTermsC, kTermsB>(args, shared, warp / 4 - 1);
  }
#else
  __trap();
#endif
}

}  // namespace sparse_autotune
