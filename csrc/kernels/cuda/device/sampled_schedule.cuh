// The warp of a sampled product's kernel that finds tasks for the others.
#pragma once

#include "kernels/cuda/device/sampled_pairs.cuh"
#include "kernels/cuda/device/sampled_tasks.cuh"
#include "row_orders.h"

namespace sparse_autotune {

// One warp: finds this thread block's tasks, one ahead of those who work on them.
template <typename Tile>
__device__ __forceinline__ void schedule(const SampledArguments& args,
                                         SampledQueue<Tile::kTaskReaders> queue) {
  PairFinder pairs(args);
  // Part `part` of so many of task `number`.
  const auto push = [&](unsigned number, int part, int parts, bool halved) {
    mbarrier_wait(queue.empty(), queue.at.parity ^ 1);
    SampledTask& task = queue.tasks[queue.at.stage];
    if (Tile::kTall && args.panels > 0) {
      pairs.find<Tile>(number, task);
    } else {
      const int most = halved ? Tile::kPieces / 2 : Tile::kPieces;
      const unsigned before = min(number, args.whole);
      const unsigned first =
          before * Tile::kPieces + (number - before) * static_cast<unsigned>(most);
      find_pieces<Tile>(args, first, most, task);
    }
    if (threadIdx.x % 32 == 0) {
      task.stride = args.clustered ? parts : 1;
      task.first = args.clustered ? part : part_begin(args.steps, parts, part);
      task.steps = args.clustered ? (args.steps - part + parts - 1) / parts
                                  : part_begin(args.steps, parts, part + 1) - task.first;
      task.part = parts > 1 ? part : -1;
      task.rest = static_cast<int>(number - args.whole);
      task.valid = 1;
    }
    mbarrier_arrive(queue.full());
    queue.at.advance();
  };
  for (unsigned number = blockIdx.x; number < args.whole; number += gridDim.x) {
    push(number, 0, 1, false);
  }
  // From the first thread block on that has no task in the last round.
  unsigned me = blockIdx.x + gridDim.x - args.whole % gridDim.x;
  if (me >= gridDim.x) me -= gridDim.x;
  for (unsigned unit = me; unit < args.rest * args.parts; unit += gridDim.x) {
    const unsigned number = args.clustered ? unit / args.parts : unit % args.rest;
    const unsigned part = args.clustered ? unit % args.parts : unit / args.rest;
    push(args.whole + number, static_cast<int>(part), static_cast<int>(args.parts), args.halved);
  }
  queue.close();
}

}  // namespace sparse_autotune
