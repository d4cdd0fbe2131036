// The kernel of sampled_even_sm90: a thread block works on tasks of up to two blocks of a row in
// turn. One warp finds them (sampled_shares.cuh), one thread keeps TMA copies under way, two
// warpgroups multiply and store.
//
// A stage of the ring holds 64 terms of 128 rows of C, then of the columns of B that the task has.
// All thread blocks walk the terms together, and every other time backwards: what the tasks before
// ended with is still in L2.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/device/launch_overlap.cuh"
#include "kernels/cuda/device/mbarrier.cuh"
#include "kernels/cuda/device/tma.cuh"
#include "kernels/cuda/device/warpgroup.cuh"
#include "kernels/cuda/sampled/sampled_parts.cuh"
#include "kernels/cuda/sampled/sampled_pipeline.cuh"
#include "kernels/cuda/sampled/sampled_shares.cuh"
#include "kernels/cuda/sampled/sampled_walk.cuh"

namespace sparse_autotune {

struct EvenTask {
  ShareTask share;  // of no pieces: there are no more tasks
  bool unsure;      // found while the launch ahead might still change the indices
  bool backwards;   // through the terms
};

// Tasks on their way from the warp that finds them; whether the first, if found early, was right.
struct EvenNotes {
  static constexpr int kSlots = 2;
  EvenTask tasks[kSlots];
  bool confirmed;
};

struct EvenTile {
  static constexpr int kSide = 128, kPieces = 4;
  static constexpr int kStages = 4;
  static constexpr int kBytesC = kSide * kLineBytes, kStageBytes = kBytesC + kPieces * kPieceBytes;
  // Threads: compute-sanitizer follows no __syncwarp to the arrival of another lane.
  static constexpr int kTaskReaders = 1 + kConsumers * kWarpgroup;
};

struct EvenShared : WalkShared<EvenTile, EvenNotes, 2 * EvenNotes::kSlots> {
  using WalkShared::WalkShared;

  __device__ __forceinline__ uint32_t found(uint32_t i) const { return more(i); }
  __device__ __forceinline__ uint32_t taken(uint32_t i) const {
    return more(EvenNotes::kSlots + i);
  }
  __device__ __forceinline__ void init_barriers() const {
    for (int i = 0; i < EvenNotes::kSlots; ++i) {
      mbarrier_init(found(i), 1);
      mbarrier_init(taken(i), EvenTile::kTaskReaders);
    }
    WalkShared::init_barriers(1);
  }
  // Calls f with each task, until it has none.
  template <typename F>
  __device__ __forceinline__ void for_tasks(F&& f) const {
    for (RingPlace<EvenNotes::kSlots> at;; at.advance()) {
      mbarrier_wait(found(at.stage), at.parity);
      const EvenTask task = notes->tasks[at.stage];
      mbarrier_arrive(taken(at.stage));
      if (task.share.pieces == 0) return;
      f(task);
    }
  }
};

// What one step of a task takes of B: the columns of two blocks, each whole or a half of them.
struct EvenColumns {
  const CUtensorMap* map[2];
  int column[2];
  int pieces[2];  // of 64 columns; the second may have none

  __device__ __forceinline__ EvenColumns(const ShareArguments& args, const ShareTask& task) {
    const bool late = task.piece % 2 != 0;  // begins with a block's second half
    pieces[0] = late ? 1 : 2;
    pieces[1] = task.pieces - pieces[0];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      map[i] = pieces[i] == 1 ? &args.b_half : &args.b;
      column[i] = task.column[i] * EvenTile::kSide;
    }
    if (late) column[0] += EvenTile::kSide / 2;
  }
};

// One warp, while the launch ahead may not be over: finds the first task by indices that this may
// still change, and has L2 fetch its first steps, which this may have still to write.
template <bool kTerms>
__device__ __forceinline__ void find_early(const ShareArguments& args, const EvenShared& shared) {
  const ShareTask task = ShareFinder(args, gridDim.x).find(static_cast<int>(blockIdx.x));
  const int lane = threadIdx.x % 32;
  if (lane == 0) shared.notes->tasks[0] = {task, true, false};
  if (task.pieces == 0 || lane >= min(EvenTile::kStages, args.matrix_steps)) return;
  const int term = lane * kStepK;
  const EvenColumns columns(args, task);
  fetch_lines<kTerms>(args.c, task.row * EvenTile::kSide, term);
  fetch_lines<kTerms>(*columns.map[0], columns.column[0], term);
  if (columns.pieces[1] > 0) fetch_lines<kTerms>(*columns.map[1], columns.column[1], term);
}

// The same warp, once it is over: finds this thread block's tasks, one ahead of those who work on
// them.
__device__ __forceinline__ void find_even_tasks(const ShareArguments& args,
                                                const EvenShared& shared) {
  const bool leader = threadIdx.x % 32 == 0;
  const ShareTask early = shared.notes->tasks[0].share;
  RingPlace<EvenNotes::kSlots> at;
  if (early.pieces > 0) {
    if (leader) mbarrier_arrive(shared.found(at.stage));
    at.advance();
  }
  const ShareFinder finder(args, gridDim.x);
  auto number = static_cast<int>(blockIdx.x);
  bool backwards = false;
  ShareTask task = finder.find(number);
  const bool same = early == task;
  __syncwarp();  // before what it was compared with is written over
  if (leader) {
    shared.notes->confirmed = same;
    mbarrier_arrive(shared.checked());
  }
  const auto find_next = [&] {
    task = finder.find(number += static_cast<int>(gridDim.x));
    backwards = !backwards;
  };
  if (same && task.pieces > 0) find_next();
  for (;;) {
    if (leader) {
      mbarrier_wait(shared.taken(at.stage), at.parity ^ 1);
      shared.notes->tasks[at.stage] = {task, false, backwards};
      mbarrier_arrive(shared.found(at.stage));
    }
    __syncwarp();
    if (task.pieces == 0) return;
    at.advance();
    find_next();
  }
}

// One thread.
template <bool kTerms>
__device__ __forceinline__ void produce_even(const ShareArguments& args, const EvenShared& shared) {
  RingPlace<EvenTile::kStages> at;
  shared.for_tasks([&](const EvenTask& found) {
    const ShareTask& task = found.share;
    const EvenColumns columns(args, task);
    const int row = task.row * EvenTile::kSide;
    const uint32_t bytes = EvenTile::kBytesC + task.pieces * kPieceBytes;
    const uint32_t behind = EvenTile::kBytesC + columns.pieces[0] * kPieceBytes;
    const int ahead = found.backwards ? -1 : 1, last = args.matrix_steps - 1;
    const int begin = found.backwards ? last : 0, end = last - begin;
    int step = begin, matrix = found.backwards ? args.steps / args.matrix_steps - 1 : 0;
#pragma unroll 1
    for (int left = args.steps; left > 0; --left) {
      const uint32_t full = shared.full(at.stage), to = shared.stage(at.stage);
      const int term = step * kStepK, of_b = args.b_batched ? matrix : 0;
      mbarrier_wait(shared.empty(at.stage), at.parity ^ 1);
      mbarrier_arrive_expect(full, bytes);
      load_lines<kTerms>(to, args.c, full, row, term, args.c_batched ? matrix : 0);
      load_lines<kTerms>(to + EvenTile::kBytesC, *columns.map[0], full, columns.column[0], term,
                         of_b);
      if (columns.pieces[1] > 0) {
        load_lines<kTerms>(to + behind, *columns.map[1], full, columns.column[1], term, of_b);
      }
      at.advance();
      if (step == end) {
        step = begin;
        matrix += ahead;
      } else {
        step += ahead;
      }
    }
  });
}

// A warpgroup: 64 rows of each task.
template <typename T, bool kTerms>
__device__ __forceinline__ void consume_even(const ShareArguments& args, const EvenShared& shared,
                                             int consumer) {
  RingPlace<EvenTile::kStages> at;
  shared.for_tasks([&](const EvenTask& found) {
    constexpr int kSide = EvenTile::kSide;
    const ShareTask& task = found.share;
    const auto run = [&]<int kPieces>(std::integral_constant<int, kPieces>) {
      // Without a value to begin with they would hold registers from the kernel's start, and so
      // for each of its branches.
      float sum[kPieces * 32] = {};
      walk_terms<T, EvenTile::kStages, kTerms, 1, kPieces * 64>(
          shared, consumer, consumer * kPieceBytes, EvenTile::kBytesC, args.steps, at, sum);
      if (found.unsure && !shared.confirmed()) return;
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        const int piece = task.piece + i;
        const int64_t line = static_cast<int64_t>(piece / 2) * kSide + consumer * 64;
        store_piece(static_cast<T*>(args.values) + line * kSide + piece % 2 * 64, sum + 32 * i,
                    kSide);
      }
    };
    if (task.pieces == 4) {
      run(std::integral_constant<int, 4>{});
    } else if (task.pieces == 3) {
      run(std::integral_constant<int, 3>{});
    } else {
      run(std::integral_constant<int, 2>{});
    }
  });
}

template <typename T, bool kTerms>
__global__ void __launch_bounds__(kThreads, 1)
    sampled_even_kernel(const __grid_constant__ ShareArguments args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ char memory[];
  const EvenShared shared(memory);
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  if (threadIdx.x == 0) {
    tma_prefetch_map(args.c);
    tma_prefetch_map(args.b);
    tma_prefetch_map(args.b_half);
    shared.init_barriers();
  }
  if (warp == 1) find_early<kTerms>(args, shared);
  follow_launch_before();
  __syncthreads();
  // 88 + 2 * 208 registers for a thread of each warpgroup: the 3 * 168 that were launched.
  if (warp < 4) {
    give_up_registers<88>();
    if (warp == 0 && elect_one()) produce_even<kTerms>(args, shared);
    if (warp == 1) find_even_tasks(args, shared);
  } else {
    take_registers<208>();
    consume_even<T, kTerms>(args, shared, warp / 4 - 1);
  }
#else
  __trap();
#endif
}

}  // namespace sparse_autotune
