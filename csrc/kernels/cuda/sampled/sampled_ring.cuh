// What the warps of a sampled product's kernel share: arguments, the ring that both operands go
// through, and a thread block's way through the table of tasks (sampled_tasks.h).
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/device/mbarrier.cuh"
#include "kernels/cuda/device/tma.cuh"
#include "kernels/cuda/device/warpgroup_roles.cuh"
#include "row_orders.h"
#include "sampled_tasks.h"

namespace sparse_autotune {

struct SampledArguments {
  // Boxes of C's strips, of B's units and of two units; with the batch as last dimension.
  CUtensorMap c, b, b_wide;
  const TaskTable* table;
  void* sampled;
  float* partials;          // of a task's parts: tiles of all tasks' first parts, second, ...
  unsigned* counters;       // two for each task, 0 between launches
  int tasks, parts;         // tasks, at most; parts of the sums of each
  int steps, matrix_steps;  // of 64 terms: of all matrices of the batch, of one
  int block_k;
  int strip_bytes;  // of 64 terms of a strip
  bool c_batched, b_batched;
};

constexpr int kUnitBytes = kLinesOfUnit * kLineBytes;  // 64 lines by 64 terms

// Words of the table as L2 has them: another launch may have built it.
__device__ __forceinline__ int4 load_task_words(const void* from, int i = 0) {
  int4 words;
  asm volatile("ld.global.cg.v4.s32 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "l"(static_cast<const int4*>(from) + i));
  return words;
}

// The first task of a thread block. There may be fewer: then it has none.
__device__ __forceinline__ int first_task(const SampledArguments& args) {
  const auto me = static_cast<int>(blockIdx.x);
  return args.parts > 1 ? me % args.tasks : min(me, args.tasks - 1);
}

// What the warps of a thread block find out together.
struct SampledNotes {
  int count;  // of all tasks
  int units;  // of a stage: of the largest of all tasks
};

constexpr int kRingUnits = 28, kMostStages = 8;

// What a thread block keeps in shared memory, from a multiple of kSwizzleAlignment on. The ring has
// as many stages as it holds of the largest of all tasks. With as many as hold its own, a thread
// block with small tasks would run ahead of the others, and L2 would read operands twice.
struct SampledLayout {
  std::byte ring[kRingUnits][kUnitBytes];
  RingBarriers<kMostStages> barriers;
  SampledNotes notes;
};

// The same by address, and what is read and written as it is.
struct SampledRing : RingBarriersAt<kMostStages> {
  static constexpr int kBytes = kSwizzleAlignment + sizeof(SampledLayout);
  static_assert(kBytes <= 227 * 1024, "more shared memory than a thread block of Hopper may have");

  uint32_t ring;
  SampledLayout* layout;

  __device__ __forceinline__ explicit SampledRing(char* memory) {
    const auto begin = static_cast<uint32_t>(__cvta_generic_to_shared(memory));
    ring = align_swizzled(begin);
    layout = reinterpret_cast<SampledLayout*>(memory + (ring - begin));
    barriers = ring + offsetof(SampledLayout, barriers);
  }
  __device__ __forceinline__ SampledNotes& notes() const { return layout->notes; }
  __device__ __forceinline__ void init_barriers() const {
    init(1, 4 * kConsumers);
    mbarrier_init_fence();
  }
};

// Its stages, once their size is known.
struct SampledStages {
  uint32_t ring, bytes, count;

  __device__ __forceinline__ explicit SampledStages(const SampledRing& shared)
      : ring(shared.ring),
        bytes(shared.notes().units * kUnitBytes),
        count(min(kRingUnits / shared.notes().units, kMostStages)) {}
  __device__ __forceinline__ uint32_t operator[](uint32_t i) const { return ring + i * bytes; }
};
using SampledPlace = RingPlace<kMostStages>;

// A thread block's tasks, one after another, or its part of the one that it has.
struct SampledWalk {
  int count;         // of all tasks
  int first, steps;  // of the sums
  int number;        // of the task; `count` or more: there are no more
  int round = 0, part = 0;
  bool in_parts;

  __device__ __forceinline__ SampledWalk(const SampledArguments& args, const SampledRing& shared)
      : count(shared.notes().count),
        first(0),
        steps(args.steps),
        number(static_cast<int>(blockIdx.x)),
        in_parts(args.parts > 1) {
    if (!in_parts) return;
    part = number / args.tasks;
    number = part < args.parts ? number - part * args.tasks : count;
    first = part_begin(args.steps, args.parts, part);
    steps = part_begin(args.steps, args.parts, part + 1) - first;
  }
  __device__ __forceinline__ bool ended() const { return number >= count; }
  // Only the last round may have no task for it.
  __device__ __forceinline__ void advance() {
    number = in_parts ? count
                      : task_of_round(++round, static_cast<int>(blockIdx.x),
                                      static_cast<int>(gridDim.x));
  }
};

// By one thread: what all need to know of the tasks.
__device__ __forceinline__ void note_tasks(const SampledArguments& args,
                                           const SampledRing& shared) {
  const int4 head = load_task_words(args.table);
  shared.notes() = {head.x, max(head.w, 1)};
}

}  // namespace sparse_autotune
