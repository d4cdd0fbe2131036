// The kernel of mma_sm80, and its instances.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <type_traits>

#include "kernels/cuda/device/cp_async.cuh"
#include "kernels/cuda/device/epilogue.cuh"
#include "kernels/cuda/device/fragments.cuh"
#include "kernels/cuda/device/load_index.cuh"
#include "kernels/cuda/device/mma_tile.cuh"
#include "kernels/cuda/device/tile_loader.cuh"
#include "kernels/cuda/kernel_code.h"
#include "variant.h"

namespace sparse_autotune {

struct MmaArguments {
  const void* crow_indices;
  const void* col_indices;
  const void* positions;  // Launch::positions
  const void* values;
  const void* b;
  const void* bias;
  void* c;
  int64_t n, ldb, ldc, b_batch_stride, c_batch_stride;
  int block_m, block_k, strips;      // strips: of one block row
  unsigned grid_rows, grid_columns;  // strips of all block rows, tiles along n
  int slices;                        // of a block's row
  int step_blocks, step_slices;      // one step: whole blocks and remaining slices
  int values_alignment, b_alignment, c_alignment;
  Activation activation;
  bool wide_indices, c_rows;
};

// A slice of the block row: `slice` of its stored block number `block`.
struct SliceCursor {
  int block = 0, slice;

  __device__ __forceinline__ SliceCursor(int slice_of_step, const MmaArguments& args)
      : slice(slice_of_step) {
    for (; slice >= args.slices; slice -= args.slices) ++block;
  }
  __device__ __forceinline__ void advance(const MmaArguments& args) {
    block += args.step_blocks;
    slice += args.step_slices;
    if (slice >= args.slices) {
      slice -= args.slices;
      ++block;
    }
  }
};

template <typename T, typename Tile, bool kTransposedA, bool kRowMajorB>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kResident)
    mma_sm80_kernel(const __grid_constant__ MmaArguments args) {
  extern __shared__ __align__(128) char shared[];
  const auto ring = static_cast<uint32_t>(__cvta_generic_to_shared(shared));

  // Block rows run fastest: thread blocks in flight together share B's columns in L2.
  const unsigned grid_row = blockIdx.x % args.grid_rows, rest = blockIdx.x / args.grid_rows;
  const int64_t batch = rest / args.grid_columns;
  const int64_t n0 = static_cast<int64_t>(rest % args.grid_columns) * Tile::kN;
  const int64_t block_row = grid_row / static_cast<unsigned>(args.strips);
  const int m0 = static_cast<int>(grid_row % static_cast<unsigned>(args.strips)) * Tile::kM;
  const int rows = min(args.block_m - m0, Tile::kM);
  const int columns = static_cast<int>(min(args.n - n0, static_cast<int64_t>(Tile::kN)));

  const int64_t begin = load_index(args.crow_indices, block_row, args.wide_indices);
  const auto length =
      static_cast<int>(load_index(args.crow_indices, block_row + 1, args.wide_indices) - begin);
  const int steps = (length * args.slices + Tile::kSlices - 1) / Tile::kSlices;

  using LoadA =
      std::conditional_t<kTransposedA, RowLoader<T, Tile, Tile::kM>, LineLoader<T, Tile, Tile::kM>>;
  SliceCursor a_at(LoadA::slice(), args);
  const int64_t block_size = static_cast<int64_t>(args.block_m) * args.block_k;
  const T* a = static_cast<const T*>(args.values);
  int a_bytes = 0;  // of this thread's chunks
  if constexpr (kTransposedA) {
    a += static_cast<int64_t>(LoadA::row()) * args.block_m + m0 + LoadA::element();
    a_bytes = min(max(rows - LoadA::element(), 0), kChunk<T>) * static_cast<int>(sizeof(T));
  } else {
    a += begin * block_size + static_cast<int64_t>(m0 + LoadA::line()) * args.block_k +
         LoadA::element();
  }
  // Where a_at's block lies is fetched a step ahead of its use.
  const auto position = [&]() -> int64_t {
    return kTransposedA && a_at.block < length
               ? load_index(args.positions, begin + a_at.block, args.wide_indices)
               : 0;
  };
  int64_t a_position = position();

  using LoadB =
      std::conditional_t<kRowMajorB, RowLoader<T, Tile, Tile::kN>, LineLoader<T, Tile, Tile::kN>>;
  SliceCursor b_at(LoadB::slice(), args);
  const T* b = static_cast<const T*>(args.b) + batch * args.b_batch_stride;
  int b_bytes = 0;  // of this thread's chunks
  if constexpr (kRowMajorB) {
    b += LoadB::row() * args.ldb + n0 + LoadB::element();
    b_bytes = min(max(columns - LoadB::element(), 0), kChunk<T>) * static_cast<int>(sizeof(T));
  } else {
    b += (n0 + LoadB::line()) * args.ldb + LoadB::element();
  }
  // The column index of b_at's block is fetched a step ahead of its use.
  const auto column_index = [&] {
    return b_at.block < length ? load_index(args.col_indices, begin + b_at.block, args.wide_indices)
                               : 0;
  };
  int64_t b_column = column_index();

  // Starts the copies of the next step into a stage of the ring. Slices behind the last are zeros.
  const auto load_step = [&](uint32_t stage) {
    if constexpr (kTransposedA) {
      const T* from = a + a_position * block_size + a_at.slice * kSlice<T> * int64_t{args.block_m};
      LoadA::load(stage, from, args.block_m, a_at.block < length ? a_bytes : 0,
                  args.values_alignment, args.values);
    } else {
      const T* from = a + a_at.block * block_size + a_at.slice * kSlice<T>;
      LoadA::load(stage, from, args.block_k, a_at.block < length ? rows : 0, args.values_alignment,
                  args.values);
    }
    a_at.advance(args);
    a_position = position();

    const bool present = b_at.block < length;
    const int64_t k = b_column * args.block_k + b_at.slice * kSlice<T>;
    const uint32_t tile = stage + Tile::kM * Tile::kStepBytes;
    if constexpr (kRowMajorB) {
      LoadB::load(tile, b + k * args.ldb, args.ldb, present ? b_bytes : 0, args.b_alignment,
                  args.b);
    } else {
      LoadB::load(tile, b + k, args.ldb, present ? columns : 0, args.b_alignment, args.b);
    }
    b_at.advance(args);
    b_column = column_index();
  };

  using Registers = Fragments<T, Tile, kTransposedA, kRowMajorB>;
  const uint32_t a_offset = Registers::a_offset();
  const uint32_t b_offset = Registers::b_offset() + Tile::kM * Tile::kStepBytes;
  float sum[Tile::kWarpM * Tile::kWarpN / 32] = {};

  // Each turn computes one step and starts the copies of the step kStages - 1 ahead; the first
  // turns only copy. `filled` is the stage that the turn's copies go to.
  uint32_t filled = ring;
  for (int step = 1 - Tile::kStages; step < steps; ++step) {
    const uint32_t stage = filled + Tile::kStageBytes == ring + Tile::kStages * Tile::kStageBytes
                               ? ring
                               : filled + Tile::kStageBytes;
    Registers registers[2];
    if (step >= 0) {
      cp_async_wait<Tile::kStages - 2>();
      // Everyone's copies for this step have landed, and everyone has left the stage of the step
      // before, which is the one filled next.
      __syncthreads();
      registers[0].load(stage + a_offset, stage + b_offset, 0);
    }
    if (step + Tile::kStages - 1 < steps) load_step(filled);
    cp_async_commit();
    filled = stage;
    if (step < 0) continue;
#pragma unroll
    for (int slice = 0; slice < Tile::kSlices; ++slice) {
      if (slice + 1 < Tile::kSlices) {
        registers[(slice + 1) % 2].load(stage + a_offset, stage + b_offset, slice + 1);
      }
      registers[slice % 2].multiply(sum);
    }
  }
  cp_async_wait<0>();
  __syncthreads();

  const int64_t row = block_row * args.block_m + m0;
  Output<T> out;
  out.c = static_cast<T*>(args.c) + batch * args.c_batch_stride +
          (args.c_rows ? row * args.ldc + n0 : n0 * args.ldc + row);
  out.ldc = args.ldc;
  out.bias = args.bias == nullptr ? nullptr : static_cast<const T*>(args.bias) + row;
  out.rows = rows;
  out.columns = columns;
  out.alignment = args.c_alignment;
  out.row_major = args.c_rows;
  out.activation = args.activation;
  write_tile<T, Tile>(sum, shared, out);
}

template <typename T, typename Tile, bool kTransposedA, bool kRowMajorB>
constinit KernelCode<MmaArguments> mma_code{&mma_sm80_kernel<T, Tile, kTransposedA, kRowMajorB>};

// A tile's kernels for A or for A^T, by DType and Layout of B; null where the tile has no TF32.
struct MmaCodes {
  KernelCode<MmaArguments>* of[3][2];
};

template <typename Tile, bool kTransposedA>
constexpr MmaCodes mma_codes() {
  MmaCodes codes{
      {{&mma_code<__half, Tile, kTransposedA, true>, &mma_code<__half, Tile, kTransposedA, false>},
       {&mma_code<__nv_bfloat16, Tile, kTransposedA, true>,
        &mma_code<__nv_bfloat16, Tile, kTransposedA, false>},
       {}}};
  if constexpr (Tile::kHasTf32) {
    codes.of[2][0] = &mma_code<float, Tile, kTransposedA, true>;
    codes.of[2][1] = &mma_code<float, Tile, kTransposedA, false>;
  }
  return codes;
}

// mma_codes<Tile, true>(), which mma_transposed_sm80.cu compiles.
template <typename Tile>
MmaCodes transposed_mma_codes();

// Rows, columns, bytes of a step, stages, warps along m and n, thread blocks a multiprocessor.
using MmaM128N128 = MmaTile<128, 128, 128, 3, 2, 2, 2>;
using MmaM64N256 = MmaTile<64, 256, 128, 2, 1, 4, 2>;
using MmaM64N128 = MmaTile<64, 128, 128, 3, 2, 2, 3>;
using MmaM64N64 = MmaTile<64, 64, 128, 3, 2, 2, 4>;
using MmaM32N256 = MmaTile<32, 256, 128, 3, 1, 4, 2>;
using MmaM16N128 = MmaTile<16, 128, 128, 4, 1, 4, 3>;
using MmaM16N32 = MmaTile<16, 32, 128, 6, 1, 2, 8>;

}  // namespace sparse_autotune
