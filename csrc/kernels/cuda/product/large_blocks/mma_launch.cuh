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
#include "kernels/cuda/device/panel_walk.cuh"
#include "kernels/cuda/device/product_arguments.cuh"
#include "kernels/cuda/device/tile_loader.cuh"
#include "kernels/cuda/host/kernel_code.h"
#include "operators/product/product.h"

namespace sparse_autotune {

struct MmaArguments : ProductArguments {
  Panels panels;
  int64_t n, ldb, ldc, b_batch_stride, c_batch_stride;
  int64_t step_a, wrap_a;   // elements of A from one step to the next, and more at a block's end
  uint32_t line_a, line_b;  // bytes from one line to the next, where `straight`
  int block_m, block_k, strips;  // strips: of one block row
  int slices;                    // of a block's row
  int step_blocks, step_slices;  // one step: whole blocks and remaining slices
  int values_alignment, b_alignment, c_alignment;
  bool c_rows;
  bool straight;  // values and B are aligned to 16 bytes, and their lines less than 2^32 apart
};

// A slice of the block row: `slice` of its stored block number `block`.
struct SliceCursor {
  int block = 0, slice;

  __device__ __forceinline__ SliceCursor(int slice_of_step, const MmaArguments& args)
      : slice(slice_of_step) {
    for (; slice >= args.slices; slice -= args.slices) ++block;
  }
  // Whether the cursor left the rest of a block out.
  __device__ __forceinline__ bool advance(const MmaArguments& args) {
    block += args.step_blocks;
    slice += args.step_slices;
    const bool wraps = slice >= args.slices;
    if (wraps) {
      slice -= args.slices;
      ++block;
    }
    return wraps;
  }
};

// What a thread block computes: a strip of a block row by some columns of one matrix of the batch.
// Kept small, as it outlives the loop.
struct MmaPart {
  int block_row, begin, length;  // stored blocks
  int m0, rows, columns;         // the strip's first row within its block row, and its size
  unsigned column, batch;        // `column`: of tiles

  template <typename Tile>
  __device__ __forceinline__ int64_t n0() const {
    return int64_t{column} * Tile::kN;
  }
};

template <typename Tile>
__device__ __forceinline__ MmaPart find_part(const MmaArguments& args) {
  const TilePlace at = locate(args.panels, blockIdx.x);
  const auto strips = static_cast<unsigned>(args.strips);
  const OrderedRow row = row_of_order(args, at.row / strips);
  MmaPart part;
  part.block_row = row.row;
  part.m0 = static_cast<int>(at.row % strips) * Tile::kM;
  part.begin = row.begin;
  part.length = row.end - row.begin;
  part.column = at.column;
  part.batch = at.batch;
  part.rows = min(args.block_m - part.m0, Tile::kM);
  part.columns =
      static_cast<int>(min(args.n - part.template n0<Tile>(), static_cast<int64_t>(Tile::kN)));
  return part;
}

// This thread's share of the copies of A, a step at a time.
template <typename T, typename Tile, bool kTransposed>
class CopiesOfA {
 public:
  __device__ __forceinline__ CopiesOfA(const MmaArguments& args, const MmaPart& part)
      : at_(Loader::slice(), args), from_(static_cast<const T*>(args.values)), lines_(part.rows) {
    if constexpr (kTransposed) {
      from_ += int64_t{Loader::row()} * args.block_m + part.m0 + Loader::element();
      lines_ = min(max(part.rows - Loader::element(), 0), kChunk<T>) * static_cast<int>(sizeof(T));
      find_block(args, part);
    } else {
      from_ += int64_t{part.begin + at_.block} * args.block_m * args.block_k +
               at_.slice * kSlice<T> + int64_t{part.m0 + Loader::line()} * args.block_k +
               Loader::element();
    }
  }

  // `straight`: all of the step's slices exist, and args.straight.
  __device__ __forceinline__ void start(uint32_t stage, const MmaArguments& args, bool straight) {
    const uint32_t to = stage + Loader::offset();
    if constexpr (kTransposed) {
      Loader::start(to, place(args), args.line_a, straight && lines_ != 0);
    } else {
      Loader::start(to, from_, args.line_a, straight ? lines_ : 0);
    }
  }
  __device__ __forceinline__ void load(uint32_t stage, const MmaArguments& args,
                                       const MmaPart& part) {
    Loader::load(stage + Loader::offset(), kTransposed ? place(args) : from_,
                 kTransposed ? args.block_m : args.block_k, at_.block < part.length ? lines_ : 0,
                 args.values_alignment, args.values);
  }
  __device__ __forceinline__ void advance(const MmaArguments& args, const MmaPart& part) {
    const bool wraps = at_.advance(args);
    if constexpr (kTransposed) {
      find_block(args, part);
    } else {
      from_ += args.step_a + (wraps ? args.wrap_a : 0);
    }
  }

 private:
  using Loader =
      std::conditional_t<kTransposed, RowLoader<T, Tile, Tile::kM>, LineLoader<T, Tile, Tile::kM>>;

  // Where the cursor's block lies is fetched a step ahead of its use.
  __device__ __forceinline__ void find_block(const MmaArguments& args, const MmaPart& part) {
    if (part.length == 0) return;
    position_ = load_narrow_index(args.positions, part.begin + min(at_.block, part.length - 1),
                                  args.wide_indices);
  }
  __device__ __forceinline__ const T* place(const MmaArguments& args) const {
    return from_ + (int64_t{position_} * args.block_k + at_.slice * kSlice<T>)*args.block_m;
  }

  SliceCursor at_;
  const T* from_;  // the thread's chunk: of the cursor's slice, or of values' first block
  int lines_;      // rows of A, or the bytes of this thread's chunks of A^T
  int position_ = 0;
};

// This thread's share of the copies of B, a step at a time.
template <typename T, typename Tile, bool kRowMajor>
class CopiesOfB {
 public:
  __device__ __forceinline__ CopiesOfB(const MmaArguments& args, const MmaPart& part)
      : at_(Loader::slice(), args), lines_(part.columns) {
    from_ = static_cast<const T*>(args.b) + part.batch * args.b_batch_stride;
    if constexpr (kRowMajor) {
      from_ += Loader::row() * args.ldb + part.template n0<Tile>() + Loader::element();
      lines_ =
          min(max(part.columns - Loader::element(), 0), kChunk<T>) * static_cast<int>(sizeof(T));
    } else {
      from_ += (part.template n0<Tile>() + Loader::line()) * args.ldb + Loader::element();
    }
    find_block(args, part);
  }

  __device__ __forceinline__ void start(uint32_t stage, const MmaArguments& args, bool straight) {
    const uint32_t to = stage + Tile::kM * Tile::kStepBytes + Loader::offset();
    if constexpr (kRowMajor) {
      Loader::start(to, ahead(from_, args.line_b, k(args)), args.line_b, straight && lines_ != 0);
    } else {
      Loader::start(to, from_ + k(args), args.line_b, straight ? lines_ : 0);
    }
  }
  __device__ __forceinline__ void load(uint32_t stage, const MmaArguments& args,
                                       const MmaPart& part) {
    Loader::load(stage + Tile::kM * Tile::kStepBytes + Loader::offset(),
                 from_ + (kRowMajor ? k(args) * args.ldb : k(args)), args.ldb,
                 at_.block < part.length ? lines_ : 0, args.b_alignment, args.b);
  }
  __device__ __forceinline__ void advance(const MmaArguments& args, const MmaPart& part) {
    at_.advance(args);
    find_block(args, part);
  }

 private:
  using Loader =
      std::conditional_t<kRowMajor, RowLoader<T, Tile, Tile::kN>, LineLoader<T, Tile, Tile::kN>>;

  // The column index of the cursor's block is fetched a step ahead of its use.
  __device__ __forceinline__ void find_block(const MmaArguments& args, const MmaPart& part) {
    if (part.length == 0) return;
    column_ = load_narrow_index(args.col_indices, part.begin + min(at_.block, part.length - 1),
                                args.wide_indices);
  }
  __device__ __forceinline__ uint32_t k(const MmaArguments& args) const {
    return column_ * args.block_k + at_.slice * kSlice<T>;
  }

  SliceCursor at_;
  const T* from_;  // the thread's chunk of k = 0
  int lines_;      // columns of B, or the bytes of this thread's chunks of a row-major B
  int column_ = 0;
};

// Both, as multiply_steps() wants them.
template <typename T, typename Tile, bool kTransposedA, bool kRowMajorB>
struct MmaCopies {
  const MmaArguments& args;
  const MmaPart& part;
  const int straight_steps;  // which start() can copy, the first ones
  CopiesOfA<T, Tile, kTransposedA> a{args, part};
  CopiesOfB<T, Tile, kRowMajorB> b{args, part};

  __device__ __forceinline__ bool is_straight(int step) const { return step < straight_steps; }
  __device__ __forceinline__ void load(uint32_t stage) {
    a.load(stage, args, part);
    b.load(stage, args, part);
  }
  __device__ __forceinline__ void start_a(uint32_t stage, bool straight) {
    a.start(stage, args, straight);
  }
  __device__ __forceinline__ void start_b(uint32_t stage, bool straight) {
    b.start(stage, args, straight);
  }
  __device__ __forceinline__ void advance() {
    a.advance(args, part);
    b.advance(args, part);
  }
};

template <typename T, typename Tile, bool kTransposedA, bool kRowMajorB>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kResident)
    mma_sm80_kernel(const __grid_constant__ MmaArguments args) {
  extern __shared__ __align__(256) char shared[];
  const MmaPart part = find_part<Tile>(args);
  const int slices = part.length * args.slices;
  const int steps = (slices + Tile::kSlices - 1) / Tile::kSlices;
  // Not the last if some of its slices are behind the row's end, and none where a chunk holds the
  // last columns of B and something behind them.
  const bool whole_chunks = !kRowMajorB || part.columns % kChunk<T> == 0;
  const int straight_steps = args.straight && whole_chunks ? slices / Tile::kSlices : 0;
  MmaCopies<T, Tile, kTransposedA, kRowMajorB> copies{args, part, straight_steps};
  float sum[Tile::kWarpM * Tile::kWarpN / 32] = {};
  multiply_steps<Fragments<T, Tile, kTransposedA, kRowMajorB>, Tile>(
      static_cast<uint32_t>(__cvta_generic_to_shared(shared)), steps, copies, sum);

  const int64_t row = int64_t{part.block_row} * args.block_m + part.m0;
  write_tile<T, Tile>(
      sum, shared,
      output_at<T>(args, part.batch, row, part.template n0<Tile>(), part.rows, part.columns));
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

// mma_codes<Tile, kTransposedA>(), which mma_narrow_sm80.cu and mma_transposed_sm80.cu compile.
template <typename Tile, bool kTransposedA>
MmaCodes mma_codes_apart();

// Rows, columns, bytes of a step, stages, warps along m and n, thread blocks a multiprocessor.
using MmaM128N128 = MmaTile<128, 128, 128, 3, 2, 2, 2>;
using MmaM64N256 = MmaTile<64, 256, 128, 2, 1, 4, 2>;
using MmaM64N128 = MmaTile<64, 128, 128, 3, 2, 2, 3>;
using MmaM32N256 = MmaTile<32, 256, 64, 4, 1, 4, 2>;
using MmaM32N128 = MmaTile<32, 128, 128, 3, 1, 4, 3>;
using MmaM16N128 = MmaTile<16, 128, 128, 4, 1, 4, 3>;

}  // namespace sparse_autotune
