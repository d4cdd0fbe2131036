// The kernel of attention_warps_sm90 and attention_backward_warps_sm90: a thread block on each
// multiprocessor, which works on items until none is left. The first warpgroup holds the producers,
// the others are consumers.
#pragma once

#include "kernels/cuda/attention/attention_warps_producer_sm90.cuh"
#include "kernels/cuda/device/launch_overlap.cuh"

namespace sparse_autotune {

template <typename Consumer, typename Arguments, typename Tile>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    attention_warps_kernel_sm90(const __grid_constant__ Arguments args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ char memory[];
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  const WarpRowsShared<Tile> shared(memory);
  if (threadIdx.x == 0) {
    tma_prefetch_map(args.k);
    tma_prefetch_map(args.v);
    shared.init();
  }
  follow_launch_before();
  __syncthreads();
  if (warp < 4) {
    give_up_registers<Tile::kProducerRegisters>();
    using Producer = WarpRowsProducer<Arguments, Tile>;
    if (warp == 0) Producer(args, shared).template run<Producer::kCopiesK>();
    if (warp == 1) Producer(args, shared).template run<Producer::kCopiesV>();
    if (warp == 2) Producer(args, shared).template run<Producer::kLists>();
  } else {
    take_registers<Tile::kConsumerRegisters>();
    Consumer(args, shared, warp - 4).run();
  }
#else
  __trap();
#endif
}

}  // namespace sparse_autotune
