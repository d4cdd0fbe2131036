// What union_sm90.cu and union_transposed_sm90.cu share: the kernel, its tiles and its code.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "kernels/cuda/device/launch_overlap.cuh"
#include "kernels/cuda/device/warpgroup.cuh"
#include "kernels/cuda/host/kernel_code.h"
#include "kernels/cuda/product/small_blocks/union_consumers.cuh"
#include "kernels/cuda/product/small_blocks/union_producers.cuh"
#include "variant.h"

namespace sparse_autotune {

template <typename T, typename Tile, bool kTransposedA>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    union_kernel(const __grid_constant__ UnionArguments args) {
  extern __shared__ char memory[];
  const UnionShared<Tile> shared(static_cast<uint32_t>(__cvta_generic_to_shared(memory)));
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  if (threadIdx.x == 0) {
    tma_prefetch_map(args.b_map);
    tma_prefetch_map(args.c_map);
    shared.init_barriers();
  }
  follow_launch_before();
  __syncthreads();
  if (warp < 4) {
    give_up_registers<Tile::kProducerRegisters>();
    if (warp < Tile::kProducers) produce_union<Tile>(args, shared, warp);
    if (warp == Tile::kProducers) schedule<Tile>(args, shared);
  } else {
    take_registers<Tile::kConsumerRegisters>();
    consume_union<T, Tile, kTransposedA>(args, shared, warp - 4);
  }
}

template <typename T, typename Tile, bool kTransposedA>
constinit KernelCode<UnionArguments> union_code{&union_kernel<T, Tile, kTransposedA>, true};

// A configuration's kernels for A or for A^T, by DType and Layout of B; null: there is none.
struct UnionCodes {
  KernelCode<UnionArguments>* of[2][2];
};

template <typename Config, bool kTransposedA>
constexpr UnionCodes union_codes() {
  using Columns = UnionTile<Config, false>;
  UnionCodes codes = {{{nullptr, &union_code<__half, Columns, kTransposedA>},
                       {nullptr, &union_code<__nv_bfloat16, Columns, kTransposedA>}}};
  if constexpr (!Config::kColumnMajorOnly) {
    using Rows = UnionTile<Config, true>;
    codes.of[0][0] = &union_code<__half, Rows, kTransposedA>;
    codes.of[1][0] = &union_code<__nv_bfloat16, Rows, kTransposedA>;
  }
  return codes;
}

// union_codes<Config, true>(), which union_transposed_sm90.cu compiles.
template <typename Config>
UnionCodes transposed_union_codes();

// Of UnionTile: a tile's block rows, block_m, block_k, columns and warps across them; block columns
// of a stage, stages; blocks ahead of each block row, buffers for C, copies of a column-major B;
// block rows of a warp.
template <int kRows, int kM, int kK, int kWidth, int kAcross, int kStage, int kDepth, int kAhead,
          int kBuffers, UnionCopies kWay, int kOwnRows = 1>
struct UnionConfig {
  static constexpr int kGroup = kRows, kBlockM = kM, kBlockK = kK, kN = kWidth;
  static constexpr int kWarpsAcross = kAcross, kColumns = kStage, kStages = kDepth;
  static constexpr int kBlocksAhead = kAhead, kStoreBuffers = kBuffers;
  static constexpr UnionCopies kColumnMajor = kWay;
  static constexpr bool kColumnMajorOnly = false;
  static constexpr int kOwn = kOwnRows;
};

struct B16R16 : UnionConfig<16, 16, 16, 128, 1, 8, 5, 4, 1, UnionCopies::kSpans> {};
// Half as many lines of B for each row; where blocks are few, going from stage to stage is what
// warps do, so stages are wide. A row-major B gains nothing.
struct B16R32 : UnionConfig<32, 16, 16, 64, 1, 16, 4, 4, 1, UnionCopies::kSpans, 2> {
  static constexpr bool kColumnMajorOnly = true;
};
struct B16R8 : UnionConfig<8, 16, 16, 128, 1, 8, 5, 8, 2, UnionCopies::kSpans> {};
struct B16R8N64 : UnionConfig<8, 16, 16, 64, 1, 8, 8, 8, 1, UnionCopies::kChunks> {};
struct B16x32R16 : UnionConfig<16, 16, 32, 128, 1, 4, 4, 4, 1, UnionCopies::kChunks> {};
struct B32x16R8 : UnionConfig<8, 32, 16, 128, 1, 8, 5, 4, 1, UnionCopies::kChunks> {};
struct B32R8 : UnionConfig<8, 32, 32, 128, 1, 4, 4, 4, 1, UnionCopies::kChunks> {};
// Those with other copies, for where blocks are many.
template <typename Config, UnionCopies kWay>
struct CopiedOtherwise : Config {
  static constexpr UnionCopies kColumnMajor = kWay;
  static constexpr bool kColumnMajorOnly = true;
};
struct B32R8Lines : CopiedOtherwise<B32R8, UnionCopies::kLines> {};
struct B32x16R8Spans : CopiedOtherwise<B32x16R8, UnionCopies::kSpans> {};
struct B32R4 : UnionConfig<4, 32, 32, 128, 2, 4, 4, 4, 1, UnionCopies::kChunks> {};
struct B32R8N64 : UnionConfig<8, 32, 32, 64, 1, 4, 8, 4, 1, UnionCopies::kChunks> {};

}  // namespace sparse_autotune
