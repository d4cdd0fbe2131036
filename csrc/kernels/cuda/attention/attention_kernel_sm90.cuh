// The kernel of attention_sm90: a thread block on each multiprocessor, which works on items until
// none is left. One warpgroup holds the producer warps, two are consumers.
#pragma once

#include "kernels/cuda/attention/attention_consumer_sm90.cuh"
#include "kernels/cuda/attention/attention_producer_sm90.cuh"
#include "kernels/cuda/device/launch_overlap.cuh"

namespace sparse_autotune {

template <typename T, typename Tile>
__global__ void __launch_bounds__(kThreads, 1)
    attention_kernel_sm90(const __grid_constant__ AttentionArgumentsSm90 args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ char memory[];
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  if (threadIdx.x == 0) {
    tma_prefetch_map(args.q);
    tma_prefetch_map(args.k);
    tma_prefetch_map(args.v);
    for (int i = 0; i < Tile::kPipelines; ++i) AttentionShared<Tile>(memory, i).init_barriers();
  }
  follow_launch_before();
  __syncthreads();
  // 40 + 2 * 232 registers for a thread of each warpgroup: the 3 * 168 that were launched.
  if (warp < 4) {
    give_up_registers<40>();
    if (warp < Tile::kPipelines) {
      AttentionProducer<Tile>(args, AttentionShared<Tile>(memory, warp)).run(warp);
    }
  } else {
    take_registers<232>();
    const int consumer = warp / 4 - 1;
    const int pipeline = Tile::kPipelines == 2 ? consumer : 0;
    AttentionConsumer<T, Tile>(args, AttentionShared<Tile>(memory, pipeline), consumer).run();
  }
#else
  __trap();
#endif
}

}  // namespace sparse_autotune
