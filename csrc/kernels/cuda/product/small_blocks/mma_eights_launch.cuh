// The kernel of mma_eights_sm80, for the files that compile its configurations.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "kernels/cuda/host/kernel_code.h"
#include "kernels/cuda/product/small_blocks/eights_store.cuh"
#include "kernels/cuda/product/small_blocks/eights_strips.cuh"
#include "kernels/cuda/product/small_blocks/eights_tile.cuh"
#include "variant.h"

namespace sparse_autotune {

template <typename T, typename Tile, typename Strips>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kResident)
    mma_eights_kernel(const __grid_constant__ EightsArguments args) {
  using Shared = EightsShared<Tile, Strips>;
  extern __shared__ __align__(128) char memory[];
  const Shared shared{static_cast<uint32_t>(__cvta_generic_to_shared(memory))};
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  if (threadIdx.x == 0) shared.init_barriers();
  __syncthreads();
  CopiesOfStages<T, Tile, Shared> copies(args);
#pragma unroll 1
  for (int i = 0; i < Tile::kStagesAhead; ++i) copies.start(args, shared);

  // This warp's first strip of a tile of those rows.
  const auto strip_of = [&](const TilePlace& place) {
    return static_cast<int>(place.row) * Tile::kStrips + warp * Tile::kOwn;
  };
  TilePlace place = locate(args.panels, blockIdx.x);
  Strips strips(shared.place(warp), shared.landed(warp));
  strips.begin(args, strip_of(place), Strips::look(args, strip_of(place)));
  RingPlace<Tile::kStages> at;
#pragma unroll 1
  for (unsigned tile = blockIdx.x; tile < args.panels.tiles; tile += gridDim.x) {
    const TilePlace next = locate(args.panels, min(tile + gridDim.x, args.panels.tiles - 1));
    const auto ends = Strips::look(args, strip_of(next));
    float sum[Tile::kOwn][4][4] = {};
#pragma unroll 1
    for (int first = 0; first < args.k; first += Tile::kStageK) {
      copies.start(args, shared);
      mbarrier_wait(shared.full(at.stage), at.parity);
      multiply_stage<T, Tile>(args, strips, shared.stage(at.stage), first / Strips::kBlockK, sum);
      // Each lane for itself: racecheck does not see that one may speak for its warp.
      mbarrier_arrive(shared.empty(at.stage));
      at.advance();
    }
    // What the next tile begins with is on its way while this one's sums leave.
    strips.begin(args, strip_of(next), ends);
    store_eights<T>(sum, args, place.batch, strip_of(place), int64_t{place.column} * Tile::kN);
    place = next;
  }
  cp_async_wait<0>();
}

template <typename T, typename Tile, typename Strips>
constinit KernelCode<EightsArguments> eights_code{&mma_eights_kernel<T, Tile, Strips>};

// A tile as the host sees it, and its kernels by A or A^T, DType and Layout of B.
struct EightsShape {
  int strips, stage_k, threads, resident;
  int64_t shared_bytes;
  KernelCode<EightsArguments>* of[2][2][2];
};

template <int... kNumbers>
constexpr EightsShape eights_shape() {
  using Rows = EightsTile<kNumbers..., true>;
  using Columns = EightsTile<kNumbers..., false>;
  using A = Pieces<false>;
  using At = Pieces<true>;
  using Bf16 = __nv_bfloat16;
  return {Rows::kStrips,
          Rows::kStageK,
          Rows::kThreads,
          Rows::kResident,
          sizeof(EightsLayout<Rows, A>),
          {{{&eights_code<__half, Rows, A>, &eights_code<__half, Columns, A>},
            {&eights_code<Bf16, Rows, A>, &eights_code<Bf16, Columns, A>}},
           {{&eights_code<__half, Rows, At>, &eights_code<__half, Columns, At>},
            {&eights_code<Bf16, Rows, At>, &eights_code<Bf16, Columns, At>}}}};
}

// In files of their own, so that none compiles for long.
extern const EightsShape kEightsDeep, kEightsSmall;

}  // namespace sparse_autotune
