// The kernel of sampled_sm90: one thread keeps TMA copies under way, two warpgroups multiply and
// store (sampled_consumer.cuh).
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/device/launch_overlap.cuh"
#include "kernels/cuda/device/tma.cuh"
#include "kernels/cuda/device/warpgroup.cuh"
#include "kernels/cuda/sampled/sampled_consumer.cuh"
#include "kernels/cuda/sampled/sampled_operands.h"
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

// As __syncthreads(), from several places.
__device__ __forceinline__ void all_meet() {
  asm volatile("barrier.sync 0, %0;\n" ::"n"(kThreads) : "memory");
}

template <typename T, bool kTermsC, bool kTermsB>
__global__ void __launch_bounds__(kThreads, 1)
    sampled_kernel(const __grid_constant__ SampledArguments args) {
  extern __shared__ char memory[];
  const SampledRing shared(memory);
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  if (threadIdx.x == 0) {
    tma_prefetch_map(args.c);
    tma_prefetch_map(args.b);
    tma_prefetch_map(args.b_wide);
    shared.init_barriers();
  }
  follow_launch_before();
  // What each needs of the first task is under way while all wait for each other.
  const SampledTask* const first = args.table->tasks() + first_task(args);
  // 72 + 2 * 216 registers for a thread of each warpgroup: the 3 * 168 that were launched.
  if (warp < 4) {
    const TaskBoxes<kTermsC, kTermsB> boxes(first);
    if (threadIdx.x == 0) note_tasks(args, shared);
    all_meet();
    give_up_registers<72>();
    if (warp == 0 && elect_one()) produce_sampled(args, shared, boxes);
  } else {
    const ConsumerShare share(first, warp / 4 - 1);
    all_meet();
    take_registers<216>();
    consume_sampled<T, kTermsC, kTermsB>(args, shared, warp / 4 - 1, share);
  }
}

template <typename T, bool kTermsC, bool kTermsB>
constinit KernelCode<SampledArguments> sampled_code{&sampled_kernel<T, kTermsC, kTermsB>, true};

template <typename T>
constexpr SampledCodes<SampledArguments> kSampledCodes{
    {{&sampled_code<T, true, true>, &sampled_code<T, true, false>},
     {&sampled_code<T, false, true>, &sampled_code<T, false, false>}}};

// In a file of its own, so that none compiles for long.
const SampledCodes<SampledArguments>& sampled_bf16_codes();

}  // namespace sparse_autotune
