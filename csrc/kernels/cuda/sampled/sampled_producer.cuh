// The thread of a sampled product's kernel that keeps TMA copies under way.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/tma.cuh"
#include "kernels/cuda/sampled/sampled_ring.cuh"

namespace sparse_autotune {

// 64 terms of as many lines as the map's box has. `kTerms`: terms are contiguous, and lines are
// counted one by one; else by 64.
template <bool kTerms>
__device__ __forceinline__ void load_lines(uint32_t to, const CUtensorMap& map, uint32_t barrier,
                                           int line, int term, int matrix) {
  if constexpr (kTerms) {
    tma_load(to, map, barrier, term, line, matrix);
  } else {
    tma_load(to, map, barrier, 0, term, line, matrix);
  }
}

// A task's boxes, in registers.
template <bool kTermsC, bool kTermsB>
struct TaskBoxes {
  int columns, boxes, rows;
  int box[kTaskColumns];   // as in SampledTask
  int line[kTaskColumns];  // of box[i]
  int row[kTaskRows];

  __device__ __forceinline__ explicit TaskBoxes(const SampledTask* task) {
    const int4 head = load_task_words(task), strips = load_task_words(task, 3);
    columns = head.x;
    boxes = head.y;
    rows = head.z;
    row[0] = strips.x;
    row[1] = strips.y;
#pragma unroll
    for (int i = 0; i < kTaskColumns / 4; ++i) {
      const int4 words = load_task_words(task, 1 + i);
      box[4 * i] = words.x;
      box[4 * i + 1] = words.y;
      box[4 * i + 2] = words.z;
      box[4 * i + 3] = words.w;
    }
#pragma unroll
    for (int i = 0; i < kTaskColumns; ++i) line[i] = coordinate<kTermsB>(line_of_box(box[i]));
#pragma unroll
    for (int& one : row) one = coordinate<kTermsC>(one);
  }
  template <bool kTerms>
  static __device__ __forceinline__ int coordinate(int of) {
    return kTerms ? of : of / kLinesOfUnit;
  }

  // Calls b(unit, line, whether two units) and c(strip, line).
  template <typename B, typename C>
  __device__ __forceinline__ void for_each(B&& b, C&& c) const {
#pragma unroll
    for (int i = 0; i < kTaskColumns; ++i) {
      if (i >= boxes) break;
      b(unit_of_box(box[i]), line[i], is_wide_box(box[i]));
    }
#pragma unroll
    for (int i = 0; i < kTaskRows; ++i) {
      if (i >= rows) break;
      c(i, row[i]);
    }
  }
};

// One thread: keeps the ring full. `boxes`: those of the first task. Every other task goes through
// the terms backwards: L2 still has what the tasks before ended with.
template <bool kTermsC, bool kTermsB>
__device__ __forceinline__ void produce_sampled(const SampledArguments& args,
                                                const SampledRing& shared,
                                                TaskBoxes<kTermsC, kTermsB> boxes) {
  const SampledStages stages(shared);
  SampledPlace at;
  for (SampledWalk walk(args, shared); !walk.ended();) {
    const bool backwards = walk.round % 2 != 0;
    const uint32_t behind = boxes.columns * kUnitBytes;
    const uint32_t bytes = behind + boxes.rows * args.strip_bytes;
    const int ahead = backwards ? -1 : 1, end = backwards ? -1 : args.matrix_steps;
    const int begin = backwards ? args.matrix_steps - 1 : 0;
    int matrix = walk.first / args.matrix_steps, step = walk.first - matrix * args.matrix_steps;
    if (backwards) {
      step = begin;
      matrix = args.steps / args.matrix_steps - 1;
    }
#pragma unroll 1
    for (int left = walk.steps; left > 0; --left) {
      const uint32_t full = shared.full(at.stage), to = stages[at.stage];
      const int term = step * kStepK;
      const int of_b = args.b_batched ? matrix : 0, of_c = args.c_batched ? matrix : 0;
      mbarrier_wait(shared.empty(at.stage), at.parity ^ 1);
      mbarrier_arrive_expect(full, bytes);
      boxes.for_each(
          [&](int unit, int line, bool wide) {
            load_lines<kTermsB>(to + unit * kUnitBytes, wide ? args.b_wide : args.b, full, line,
                                term, of_b);
          },
          [&](int strip, int line) {
            load_lines<kTermsC>(to + behind + strip * args.strip_bytes, args.c, full, line, term,
                                of_c);
          });
      at.advance(stages.count);
      step += ahead;
      if (step == end) {
        step = begin;
        matrix += ahead;
      }
    }
    walk.advance();
    if (!walk.ended()) boxes = TaskBoxes<kTermsC, kTermsB>(args.table->tasks() + walk.number);
  }
}

}  // namespace sparse_autotune
