// mma_sm80 for whole steps: blocks that steps and tiles divide, all of it aligned to 16 bytes.
//
// Where the next copies come from is then the same for all of a thread block, and whether they are
// wanted is never asked: a step takes 263 instead of 337 instructions. Its copies are spread evenly
// over its slices, as ldmatrix waits behind a crowd of them. The last tile of columns reaches back
// over the one before. What it gains: docs/kernels/large_blocks.md.
#include "kernels/cuda/product/large_blocks/mma_launch.cuh"
#include "kernels/cuda/product/large_blocks/warp_store.cuh"
#include "kernels/cuda/product/large_blocks/whole_copies.cuh"
#include "variant.h"

namespace sparse_autotune {
namespace {

template <typename T, typename Tile, bool kRowMajorB>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kResident)
    mma_whole_kernel(const __grid_constant__ MmaArguments args) {
  extern __shared__ __align__(256) char shared[];
  const auto ring = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const MmaPart part = find_part<Tile>(args);
  const int steps = part.length * (args.slices / Tile::kSlices);
  const int64_t n0 = min(part.template n0<Tile>(), args.n - Tile::kN);

  using Registers = Fragments<T, Tile, false, kRowMajorB>;
  uint32_t a_offset = Registers::a_offset();
  uint32_t b_offset = Registers::b_offset() + Tile::kM * Tile::kStepBytes;
  asm volatile("" : "+r"(a_offset), "+r"(b_offset));
  const auto behind = [&](uint32_t stage) {
    stage += Tile::kStageBytes;
    return stage == ring + Tile::kStages * Tile::kStageBytes ? ring : stage;
  };
  float sum[Tile::kWarpM * Tile::kWarpN / 32] = {};

  if (steps > 0) {
    WholeCopies<T, Tile, kRowMajorB> copies;
    copies.begin(args, {part.begin, part.begin + part.length,
                        static_cast<uint32_t>(args.block_k) *
                            load_narrow_index(args.col_indices, part.begin, args.wide_indices),
                        part.m0, n0, part.batch});
    uint32_t stage = ring, filled = ring;
#pragma unroll 1
    for (int i = 0; i < Tile::kStages - 1; ++i) {
      copies.start(filled, args, 0, 1);
      copies.advance(args);
      cp_async_commit();
      filled += Tile::kStageBytes;
    }
    // As in mma_sm80_kernel, but for the copies.
    Registers registers[2];
    cp_async_wait<Tile::kStages - 2>();
    __syncthreads();
    registers[0].load(stage + a_offset, stage + b_offset, 0);
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
#pragma unroll
      for (int slice = 0; slice < Tile::kSlices; ++slice) {
        if (slice + 1 < Tile::kSlices) {
          // Copies first: ptxas has the first of a group wait until every ldmatrix before it is
          // done, and here the last are those of the slice before.
          copies.start(filled, args, slice, Tile::kSlices - 1);
          registers[(slice + 1) % 2].load(stage + a_offset, stage + b_offset, slice + 1);
          if (slice + 2 == Tile::kSlices) copies.advance(args);
        } else {
          cp_async_commit();
          cp_async_wait<Tile::kStages - 2>();
          __syncthreads();
          stage = behind(stage);
          filled = behind(filled);
          registers[0].load(stage + a_offset, stage + b_offset, 0);
        }
        registers[slice % 2].multiply_columns(sum);
      }
    }
    cp_async_wait<0>();
    __syncthreads();
  }
  store_warp<T, Tile>(sum, shared, args,
                      {int64_t{part.block_row} * args.block_m + part.m0, n0, part.batch});
}

template <typename T, typename Tile, bool kRowMajorB>
constinit KernelCode<MmaArguments> whole_code{&mma_whole_kernel<T, Tile, kRowMajorB>};

}  // namespace

template <>
MmaCodes whole_mma_codes<MmaM128N128>() {
  using Tile = MmaM128N128;
  return {{{&whole_code<__half, Tile, true>, &whole_code<__half, Tile, false>},
           {&whole_code<__nv_bfloat16, Tile, true>, &whole_code<__nv_bfloat16, Tile, false>},
           {}}};
}

}  // namespace sparse_autotune
