// The frame of the sampled products of one wave: a thread block's tasks, found while the launch
// before ends and confirmed once they are under way, and who does what.
//
// A Tile says how large its stages are and how its tasks are found: kSide, kStages, kStageBytes,
// Indices, Scratch, Tasks and find().
#pragma once

#include <cstdint>

#include "kernels/cuda/device/launch_overlap.cuh"
#include "kernels/cuda/device/mbarrier.cuh"
#include "kernels/cuda/device/tma.cuh"
#include "kernels/cuda/device/warpgroup.cuh"
#include "kernels/cuda/sampled/sampled_early.cuh"
#include "kernels/cuda/sampled/sampled_pipeline.cuh"
#include "kernels/cuda/sampled/sampled_walk.cuh"

namespace sparse_autotune {

// The tasks by indices as they were before the launch ahead was over; whether that changed none,
// and the tasks if it did.
template <typename Tile>
struct EarlyNotes {
  typename Tile::Tasks tasks[2];
  bool confirmed;
  typename Tile::Scratch scratch;
};

template <typename Tile>
struct EarlyShared : WalkShared<Tile, EarlyNotes<Tile>, 0> {
  using WalkShared<Tile, EarlyNotes<Tile>, 0>::WalkShared;

  // Calls f with each task and whether it is one to rely on. Tasks that were found early and turn
  // out wrong are done, too, and followed by the right ones: nothing of theirs may be stored.
  template <typename F>
  __device__ __forceinline__ void for_tasks(F&& f) const {
#pragma unroll 1
    for (int round = 0; round < 2; ++round) {
      const typename Tile::Tasks& tasks = this->notes->tasks[round];
#pragma unroll 1
      for (int i = 0; i < tasks.count; ++i) f(tasks.task[i], round > 0);
      if (this->confirmed()) return;
    }
  }
};

// By one warp, once the launch ahead is over: whether the tasks are right, while they are under
// way.
template <typename Tile>
__device__ __forceinline__ void check_early(const WaveArguments& args,
                                            const EarlyShared<Tile>& shared) {
  const typename Tile::Indices indices(args);
  const bool same = indices.are_those(shared.notes->scratch);
  if (!same) {
    indices.put(shared.notes->scratch);
    Tile::find(args, shared.notes->scratch, shared.notes->tasks[1]);
  }
  if (threadIdx.x % 32 == 0) shared.notes->confirmed = same;
  mbarrier_arrive(shared.checked());
}

// A kernel of three warpgroups. `produce` is called by one thread, `consume` by two warpgroups with
// their numbers.
template <typename Tile, bool kTerms, typename Produce, typename Consume>
__device__ __forceinline__ void run_early(const WaveArguments& args, Produce&& produce,
                                          Consume&& consume) {
  extern __shared__ char memory[];
  const EarlyShared<Tile> shared(memory);
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  if (threadIdx.x == 0) {
    tma_prefetch_map(args.c);
    tma_prefetch_map(args.b);
    shared.init_barriers(32);
  }
  // The launch before this one may not be over yet. L2 may fetch what that has still to write, and
  // tasks are found by indices that it may still change: check_early sees to that.
  if (warp == 3) fetch_first_steps<Tile::kSide, kTerms>(args, Tile::kStages);
  if (warp == 0) {
    typename Tile::Indices(args).put(shared.notes->scratch);
    Tile::find(args, shared.notes->scratch, shared.notes->tasks[0]);
  }
  follow_launch_before();
  __syncthreads();
  // 72 + 2 * 216 registers for a thread of each warpgroup: the 3 * 168 that were launched.
  if (warp < 4) {
    give_up_registers<72>();
    if (warp == 0 && elect_one()) produce(shared);
    if (warp == 1) check_early(args, shared);
  } else {
    take_registers<216>();
    consume(shared, warp / 4 - 1);
  }
}

}  // namespace sparse_autotune
