// The kernel of sampled_sm90, and what the host knows of a tile of its.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "kernels/cuda/device/launch_overlap.cuh"
#include "kernels/cuda/device/warpgroup.cuh"
#include "kernels/cuda/sampled/sampled_codes.h"
#include "kernels/cuda/sampled/sampled_consumer.cuh"
#include "kernels/cuda/sampled/sampled_schedule.cuh"
#include "variant.h"

namespace sparse_autotune {

template <typename T, typename Tile, bool kTermsC, bool kTermsB>
__global__ void __launch_bounds__(kThreads, 1)
    sampled_kernel(const __grid_constant__ SampledArguments args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ char memory[];
  const SampledShared<Tile> shared(memory);
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  if (threadIdx.x == 0) {
    tma_prefetch_map(args.c);
    tma_prefetch_map(args.b);
    shared.init_barriers();
  }
  follow_launch_before();
  __syncthreads();
  // 72 + 2 * 216 registers for a thread of each warpgroup: the 3 * 168 that were launched.
  if (warp < 4) {
    give_up_registers<72>();
    if (warp == 0 && elect_one()) produce_c<Tile, kTermsC>(args, shared);
    if (warp == 2 && elect_one()) produce_b<Tile, kTermsB>(args, shared);
    if (warp == 1) schedule<Tile>(args, shared.task_queue());
  } else {
    take_registers<216>();
    consume_tasks<T, Tile, kTermsC, kTermsB>(args, shared, warp / 4 - 1);
  }
#else
  __trap();
#endif
}

template <typename T, typename Tile, bool kTermsC, bool kTermsB>
constinit KernelCode<SampledArguments> sampled_code{&sampled_kernel<T, Tile, kTermsC, kTermsB>,
                                                    true};

// Microseconds, fitted to times on an H200: of a step where all multiprocessors are at work, and
// where so few are that L2 is not what they wait for; of a task besides its steps. Tasks of half as
// many pieces, and tasks that never have two rows, have steps of their own.
enum TaskKind { kAcrossRows, kHalf, kOfOneRow };
struct SampledPace {
  double busy_us[3], alone_us[3], task_us;
};

template <typename T, typename Tile>
constexpr SampledCodes<SampledArguments> sampled_codes() {
  static_assert(
      Tile::kSharedBytes <= 227 * 1024,
      "more shared memory than a thread block of Hopper may have");  // a Hopper multiprocessor's
  return {{{&sampled_code<T, Tile, true, true>, &sampled_code<T, Tile, true, false>},
           {&sampled_code<T, Tile, false, true>, &sampled_code<T, Tile, false, false>}}};
}

// A tile as the host sees it.
struct SampledShape {
  int rows, pieces, each, shared_bytes;  // each: pieces of a consumer
  int64_t tile_bytes;                    // of its sums
  SampledPace pace;
  SampledKernels<SampledCodes<SampledArguments>> kernels;
};

template <typename Tile>
constexpr SampledShape sampled_shape(
    const SampledPace& pace, const SampledKernels<SampledCodes<SampledArguments>>& kernels) {
  return {Tile::kRows,
          Tile::kPieces,
          Tile::kUnits,
          Tile::kSharedBytes,
          Tile::kTileFloats * static_cast<int64_t>(sizeof(float)),
          pace,
          kernels};
}

struct Strip128 : SampledTile<128, 4, 6, 4> {};
struct Strip64 : SampledTile<64, 4, 8, 5> {};

// In files of their own, so that none compiles for long.
SampledCodes<SampledArguments> strip128_bf16_codes();
SampledCodes<SampledArguments> strip64_bf16_codes();
SampledShape strip128_shape();
SampledShape strip64_shape();

}  // namespace sparse_autotune
