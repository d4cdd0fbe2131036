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
  // Part `part` of so many of task `number`; `half` as the finder of pairs has it.
  const auto push = [&](unsigned number, int part, int parts, bool halved, int half) {
    mbarrier_wait(queue.empty(), queue.at.parity ^ 1);
    SampledTask& task = queue.tasks[queue.at.stage];
    if (Tile::kTall && args.panels > 0) {
      if (!pairs.find<Tile>(number, half, task)) return;
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
  if (Tile::kTall && args.panels > 0) {
    // In the last round those that have nothing to do take the second half of tasks whose blocks
    // share nothing: the first of them of the last task, and so on.
    const unsigned tasks = args.whole + args.rest, parts = args.parts;
    const unsigned me = blockIdx.x / parts, takers = gridDim.x / parts;
    const unsigned before = args.rest > 0 ? args.whole : (tasks - 1) / gridDim.x * gridDim.x;
    const unsigned last = tasks - before, idle = takers - last;
    const int part = static_cast<int>(blockIdx.x % parts);
    for (unsigned number = blockIdx.x; number < before; number += gridDim.x) {
      push(number, 0, 1, false, -1);
    }
    if (me < last) {
      push(before + me, part, static_cast<int>(parts), false, last - 1 - me < idle ? 0 : -1);
    } else if (me - last < last) {
      push(tasks - 1 - (me - last), part, static_cast<int>(parts), false, 1);
    }
  } else {
    for (unsigned number = blockIdx.x; number < args.whole; number += gridDim.x) {
      push(number, 0, 1, false, -1);
    }
    // From the first thread block on that has no task in the last round.
    unsigned me = blockIdx.x + gridDim.x - args.whole % gridDim.x;
    if (me >= gridDim.x) me -= gridDim.x;
    for (unsigned unit = me; unit < args.rest * args.parts; unit += gridDim.x) {
      const unsigned number = args.clustered ? unit / args.parts : unit % args.rest;
      const unsigned part = args.clustered ? unit % args.parts : unit / args.rest;
      push(args.whole + number, static_cast<int>(part), static_cast<int>(args.parts), args.halved,
           -1);
    }
  }
  queue.close();
}

}  // namespace sparse_autotune
