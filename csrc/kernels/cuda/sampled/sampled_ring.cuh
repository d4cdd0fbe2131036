// What the warps of a sampled product's kernel share: arguments, the ring that both operands go
// through, and a thread block's way through the table of tasks (sampled_tasks.h).
#pragma once

#include <cuda.h>

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
  void* values;
  float* partials;     // of a task's parts: tiles of all tasks' first parts, second, ...
  unsigned* counters;  // two for each task, 0 between launches
  int tasks, parts;         // tasks, at most; parts of the sums of each
  int steps, matrix_steps;  // of 64 terms: of all matrices of the batch, of one
  int block_k;
  int strip_bytes;  // of 64 terms of a strip
  bool c_batched, b_batched;
};

constexpr int kUnitBytes = kLinesOfUnit * kLineBytes;  // 64 lines by 64 terms

// The ring has as many stages as its memory holds of the thread block's largest task.
struct SampledRing {
  static constexpr int kUnits = 28, kMostStages = 8;
  static constexpr int kBytes = kSwizzleAlignment + kUnits * kUnitBytes + 2 * kMostStages * 8 + 16;
  static_assert(kBytes <= 227 * 1024, "more shared memory than a thread block of Hopper may have");

  uint32_t ring, barriers;
  int* units;  // of a stage

  __device__ __forceinline__ explicit SampledRing(char* memory) {
    const auto begin = static_cast<uint32_t>(__cvta_generic_to_shared(memory));
    ring = align_swizzled(begin);
    barriers = ring + kUnits * kUnitBytes;
    units = reinterpret_cast<int*>(memory + (barriers + 2 * kMostStages * 8 - begin));
  }
  __device__ __forceinline__ uint32_t full(uint32_t i) const { return barriers + i * 8; }
  __device__ __forceinline__ uint32_t empty(uint32_t i) const { return full(kMostStages + i); }
  __device__ __forceinline__ void init() const {
    for (int i = 0; i < kMostStages; ++i) {
      mbarrier_init(full(i), 1);
      mbarrier_init(empty(i), 4 * kConsumers);
    }
    mbarrier_init_fence();
    }
};

// Once `units` is known: the stages, and how one walks around them.
struct SampledStages {
  uint32_t ring, bytes, stages;

  __device__ __forceinline__ explicit SampledStages(const SampledRing& shared)
      : ring(shared.ring),
        bytes(*shared.units * kUnitBytes),
        stages(min(SampledRing::kUnits / *shared.units, SampledRing::kMostStages)) {}
  __device__ __forceinline__ uint32_t operator[](uint32_t i) const { return ring + i * bytes; }
};
using SampledPlace = RingPlace<SampledRing::kMostStages>;

// Words of the table as L2 has them: another launch may have built it.
__device__ __forceinline__ int4 load_task_words(const void* from, int i = 0) {
  int4 words;
  asm volatile("ld.global.cg.v4.s32 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "l"(static_cast<const int4*>(from) + i));
  return words;
}

// A thread block's tasks, one after another, or its part of the one that it has.
struct SampledWalk {
  const TaskTable* table;
  int count;           // of all tasks
  int first, steps;    // of the sums
  int number, round;   // the task; count or more: there are no more
  int part;
  bool in_parts;

  __device__ __forceinline__ explicit SampledWalk(const SampledArguments& args)
      : table(args.table),
        count(load_task_words(args.table).x),
        first(0),
        steps(args.steps),
        number(static_cast<int>(blockIdx.x)),
        round(0),
        part(0),
        in_parts(args.parts > 1) {
    if (in_parts) {
      part = number / args.tasks;
      number -= part * args.tasks;
      first = part_begin(args.steps, args.parts, part);
      steps = part_begin(args.steps, args.parts, part + 1) - first;
      if (part >= args.parts) number = count;
    }
  }
  __device__ __forceinline__ bool ended() const { return number >= count; }
  __device__ __forceinline__ const SampledTask* task() const { return table->tasks() + number; }
  // Only the last round may have no task for it.
  __device__ __forceinline__ void advance() {
    number = in_parts ? count
                      : task_of_round(++round, static_cast<int>(blockIdx.x),
                                      static_cast<int>(gridDim.x));
  }
};

// By one warp: the units of the largest of this thread block's tasks.
__device__ __forceinline__ void find_stage_units(const SampledArguments& args,
                                                 const SampledRing& shared) {
  const SampledWalk walk(args);
  const int lane = threadIdx.x % 32;
  int units = 1;
  if (walk.in_parts && !walk.ended()) units = load_task_words(walk.task()).w;
  for (int round = lane; !walk.in_parts && round * gridDim.x < walk.count; round += 32) {
    const int number = task_of_round(round, static_cast<int>(blockIdx.x),
                                     static_cast<int>(gridDim.x));
    if (number < walk.count) units = max(units, load_task_words(walk.table->tasks() + number).w);
  }
  units = __reduce_max_sync(~0u, units);
  if (lane == 0) *shared.units = units;
}

// 64 terms of as many lines as the map's box has. `kTerms`: terms are contiguous.
template <bool kTerms>
__device__ __forceinline__ void load_lines(uint32_t to, const CUtensorMap& map, uint32_t barrier,
                                           int line, int term, int matrix) {
  if constexpr (kTerms) {
    tma_load(to, map, barrier, term, line, matrix);
  } else {
    tma_load(to, map, barrier, 0, term, line / kLinesOfUnit, matrix);
  }
}

// The same of the first matrix, to L2.
template <bool kTerms>
__device__ __forceinline__ void fetch_lines(const CUtensorMap& map, int line, int term) {
  if constexpr (kTerms) {
    tma_fetch(map, term, line, 0);
  } else {
    tma_fetch(map, 0, term, line / kLinesOfUnit, 0);
  }
}

// A task's lines, in registers.
struct TaskLines {
  int columns, rows, units;
  uint32_t wide;
  int column[kTaskColumns], row[kTaskRows];

  __device__ __forceinline__ explicit TaskLines(const SampledTask* task) {
    const int4 head = load_task_words(task), low = load_task_words(task, 1),
               high = load_task_words(task, 2), tail = load_task_words(task, 3);
    columns = head.x;
    rows = head.y;
    wide = static_cast<uint32_t>(head.z);
    units = head.w;
    column[0] = low.x;
    column[1] = low.y;
    column[2] = low.z;
    column[3] = low.w;
    column[4] = high.x;
    column[5] = high.y;
    column[6] = high.z;
    column[7] = high.w;
    row[0] = tail.x;
    row[1] = tail.y;
  }

  // Calls b(unit, line, whether two units) and c(strip, line).
  template <typename B, typename C>
  __device__ __forceinline__ void for_boxes(B&& b, C&& c) const {
#pragma unroll
    for (int i = 0; i < kTaskColumns; ++i) {
      const bool taken = i > 0 && (wide >> (i - 1) & 1u) != 0;
      if (i < columns && !taken) b(i, column[i], (wide >> i & 1u) != 0);
    }
#pragma unroll
    for (int i = 0; i < kTaskRows; ++i) {
      if (i < rows) c(i, row[i]);
    }
  }
};

// By one warp, while the launch before may not be over: has L2 fetch the first steps of the task
// that the table names now. Whatever that is, it is only fetched.
template <bool kTermsC, bool kTermsB>
__device__ __forceinline__ void fetch_first_steps(const SampledArguments& args) {
  constexpr int kSteps = 4;
  const auto lane = static_cast<int>(threadIdx.x % 32);
  const auto number = static_cast<int>(blockIdx.x);
  const int count = min(load_task_words(args.table).x, args.tasks);
  if (args.parts > 1 || number >= count || lane >= min(kSteps, args.matrix_steps)) return;
  const TaskLines lines(args.table->tasks() + number);
  lines.for_boxes(
      [&](int, int line, bool wide) {
        fetch_lines<kTermsB>(wide ? args.b_wide : args.b, line, lane * kStepK);
      },
      [&](int, int line) { fetch_lines<kTermsC>(args.c, line, lane * kStepK); });
}

// One thread: keeps the ring full. Every other task goes through the terms backwards: L2 still has
// what the tasks before ended with.
template <bool kTermsC, bool kTermsB>
__device__ __forceinline__ void produce_sampled(const SampledArguments& args,
                                                const SampledRing& shared) {
  const SampledStages stages(shared);
  SampledPlace at;
  for (SampledWalk walk(args); !walk.ended(); walk.advance()) {
    const TaskLines lines(walk.task());
    const bool backwards = walk.round % 2 != 0;
    const uint32_t bytes = lines.columns * kUnitBytes + lines.rows * args.strip_bytes;
    int matrix = walk.first / args.matrix_steps, step = walk.first - matrix * args.matrix_steps;
    if (backwards) {
      step = args.matrix_steps - 1;
      matrix = args.steps / args.matrix_steps - 1;
    }
#pragma unroll 1
    for (int left = walk.steps; left > 0; --left) {
      const uint32_t full = shared.full(at.stage), to = stages[at.stage];
      const int term = step * kStepK;
      const int of_b = args.b_batched ? matrix : 0, of_c = args.c_batched ? matrix : 0;
      mbarrier_wait(shared.empty(at.stage), at.parity ^ 1);
      mbarrier_arrive_expect(full, bytes);
      lines.for_boxes(
          [&](int unit, int line, bool wide) {
            load_lines<kTermsB>(to + unit * kUnitBytes, wide ? args.b_wide : args.b, full, line,
                                term, of_b);
          },
          [&](int strip, int line) {
            load_lines<kTermsC>(to + lines.columns * kUnitBytes + strip * args.strip_bytes, args.c,
                                full, line, term, of_c);
          });
      at.advance(stages.stages);
      step += backwards ? -1 : 1;
      if (step < 0) {
        step = args.matrix_steps - 1;
        --matrix;
      } else if (step == args.matrix_steps) {
        step = 0;
        ++matrix;
      }
    }
  }
}

}  // namespace sparse_autotune
