// The kernel of sampled_sm90: one thread keeps TMA copies under way (sampled_producer.cuh), two
// warpgroups multiply and store (sampled_consumer.cuh).
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "kernels/cuda/device/launch_overlap.cuh"
#include "kernels/cuda/device/warpgroup.cuh"
#include "kernels/cuda/sampled/sampled_codes.h"
#include "kernels/cuda/sampled/sampled_consumer.cuh"
#include "kernels/cuda/sampled/sampled_producer.cuh"
#include "kernels/cuda/sampled/sampled_ring.cuh"

namespace sparse_autotune {

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
