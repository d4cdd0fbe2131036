// The kernel of both of attention's passes on Hopper: a thread block on each multiprocessor, which
// works on items until none is left. One warpgroup holds the producer warps, the others consume.
#pragma once

#include "kernels/cuda/device/launch_overlap.cuh"
#include "kernels/cuda/device/warpgroup_roles.cuh"

namespace sparse_autotune {

template <typename Pass>
constexpr int consumers_of() {
  return Pass::Tile::kPipelines * Pass::Tile::kUsers;
}
template <typename Pass>
constexpr int threads_of() {
  return kWarpgroup * (1 + consumers_of<Pass>());
}

// `Pass` names the types of its arguments, its shared memory, its producer and its consumer, and
// how many registers a thread of each has: all together as many as were launched.
template <typename Pass>
__global__ void __launch_bounds__(threads_of<Pass>(), 1)
    attention_kernel_sm90(const __grid_constant__ typename Pass::Arguments args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Shared = typename Pass::Shared;
  constexpr int kPipelines = Pass::Tile::kPipelines;
  constexpr int kLaunched = 65536 / threads_of<Pass>() / 8 * 8;  // registers of a thread
  static_assert(Pass::kProducerRegisters + consumers_of<Pass>() * Pass::kConsumerRegisters ==
                (1 + consumers_of<Pass>()) * kLaunched);
  extern __shared__ char memory[];
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  if (threadIdx.x == 0) {
    args.prefetch_maps();
    for (int i = 0; i < kPipelines; ++i) Shared(memory, i).init_barriers();
  }
  follow_launch_before();
  if constexpr (Pass::kIsBackward) {
    if (args.ordered > 0) typename Pass::Producer(args, Shared(memory, 0)).order_last_items();
  }
  __syncthreads();
  if (warp < 4) {
    give_up_registers<Pass::kProducerRegisters>();
    if (warp < 2 * kPipelines) {
      const int of = warp % kPipelines;
      typename Pass::Producer producer(args, Shared(memory, of));
      if (warp < kPipelines) {
        producer.run(warp);
      } else if constexpr (Pass::kIsBackward) {
        producer.run_second();
      }
    }
  } else {
    take_registers<Pass::kConsumerRegisters>();
    const int consumer = warp / 4 - 1, pipeline = kPipelines == 2 ? consumer : 0;
    typename Pass::Consumer(args, Shared(memory, pipeline), consumer).run();
  }
#else
  __trap();
#endif
}

}  // namespace sparse_autotune
