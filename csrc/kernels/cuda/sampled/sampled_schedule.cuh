// The warp of a sampled product's kernel that finds tasks for the others.
#pragma once

#include "kernels/cuda/sampled/sampled_tasks.cuh"

namespace sparse_autotune {

// One warp: finds this thread block's tasks, one ahead of those who work on them.
template <typename Tile>
__device__ __forceinline__ void schedule(const SampledArguments& args,
                                         SampledQueue<Tile::kTaskReaders> queue) {
  const int lane = threadIdx.x % 32, across = args.block_k / 64;
  // Unit `sub` of so many of task `number`: a half of it, or a part of its sums.
  const auto push = [&](unsigned number, unsigned sub, bool halved, unsigned parts) {
    int most = halved ? Tile::kPieces / 2 : args.most;
    int row = 0, begin = 0, end = 0;
    if (args.order != nullptr) {
      const unsigned entry = number / static_cast<unsigned>(args.strips);
      const int4 found = __ldg(reinterpret_cast<const int4*>(args.order) + entry);
      row = found.x;
      begin = found.y + (halved ? static_cast<int>(sub) : 0);
      end = halved ? min(begin + 1, found.z) : found.z;
      if (begin >= end) return;
      if ((end - begin) * across <= Tile::kPieces / 2) most = Tile::kPieces / 2;
    }
    mbarrier_wait(queue.empty(), queue.at.parity ^ 1);
    SampledTask& task = queue.tasks[queue.at.stage];
    if (args.order != nullptr) {
      list_pieces<Tile>(args, row, static_cast<int>(number % static_cast<unsigned>(args.strips)),
                        begin, end, task);
    } else {
      const unsigned before = min(number, args.whole);
      find_pieces<Tile>(args,
                        before * static_cast<unsigned>(args.most) +
                            (number - before) * static_cast<unsigned>(most),
                        most, task);
    }
    if (lane == 0) {
      const bool cut = parts > 1;
      const auto all = static_cast<int>(parts), i = cut ? static_cast<int>(sub) : 0;
      task.first = part_begin(args.steps, all, i);
      task.steps = part_begin(args.steps, all, i + 1) - task.first;
      task.each = most > Tile::kPieces / 2 ? Tile::kUnits : Tile::kUnits / 2;
      task.part = cut ? i : -1;
      task.rest = static_cast<int>(number - args.whole);
      task.valid = 1;
    }
    mbarrier_arrive(queue.full());
    queue.at.advance();
  };
  for (unsigned number = blockIdx.x; number < args.whole; number += gridDim.x) {
    push(number, 0, false, 1);
  }
  // From the first thread block on that has no task in the last round.
  unsigned me = blockIdx.x + gridDim.x - args.whole % gridDim.x;
  if (me >= gridDim.x) me -= gridDim.x;
  const bool in_halves = args.halved && args.order != nullptr;
  const unsigned units = args.rest * (in_halves ? 2 : args.parts);
  for (unsigned unit = me; unit < units; unit += gridDim.x) {
    push(args.whole + unit % args.rest, unit / args.rest, args.halved, args.parts);
  }
  mbarrier_wait(queue.empty(), queue.at.parity ^ 1);
  if (lane == 0) queue.tasks[queue.at.stage].valid = 0;
  mbarrier_arrive(queue.full());
}

}  // namespace sparse_autotune
