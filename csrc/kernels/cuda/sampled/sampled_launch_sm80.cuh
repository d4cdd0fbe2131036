// The kernel of sampled_sm80, and its instances.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/device/epilogue.cuh"
#include "kernels/cuda/device/fragments.cuh"
#include "kernels/cuda/device/load_index.cuh"
#include "kernels/cuda/sampled/gathered_tile.cuh"
#include "kernels/cuda/sampled/sampled_operands.h"
#include "operators/product/product.h"

namespace sparse_autotune {

struct SampledArgumentsSm80 {
  const void* crow_indices;
  const void* col_indices;
  const void* c;
  const void* b;
  void* sampled;
  int64_t n, batch, ldb, ldc, b_batch_stride, c_batch_stride, block_rows;
  int block_m, block_k, blocks;  // blocks: of one tile
  int strips_m, strips_k;        // of one block
  int b_alignment, c_alignment, values_alignment;
  bool wide_indices;
  bool straight;  // C and B are aligned to 16 bytes, and their lines less than 2^32 apart
};

// The last row whose tiles begin at or before number `tile`.
__device__ __forceinline__ int64_t row_of_sampled_tile(const SampledArgumentsSm80& args,
                                                       int64_t tile) {
  int64_t low = 0, high = args.block_rows;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    const int64_t begin =
        load_index(args.crow_indices, middle, args.wide_indices) / args.blocks + middle;
    (begin <= tile ? low : high) = middle;
  }
  return low;
}

// Fills the table of lines: which row of C, then which column of B, goes to each place of a stage;
// -1: none. Stored blocks [first, first + blocks) of the block row, from (m0, k0) of a block on.
template <typename Tile>
__device__ __forceinline__ void list_lines(const SampledArgumentsSm80& args, int* table,
                                           int64_t block_row, int64_t first, int blocks, int m0,
                                           int k0) {
#pragma unroll 1
  for (int i = threadIdx.x; i < Tile::kM + Tile::kN; i += Tile::kThreads) {
    int source = -1;
    if (i < Tile::kM) {
      if (m0 + i < args.block_m) source = static_cast<int>(block_row * args.block_m) + m0 + i;
    } else {
      const int at = i - Tile::kM, block = args.strips_k > 1 ? 0 : at / args.block_k;
      const int column = k0 + at - block * args.block_k;
      if (block < blocks && column < args.block_k) {
        const auto place = load_index(args.col_indices, first + block, args.wide_indices);
        source = static_cast<int>(place) * args.block_k + column;
      }
    }
    table[i] = source;
  }
}

// A thread's copies of steps to the ring, as multiply_steps() wants them. kTermsC: C's terms are
// contiguous (it is row-major); kTermsB: B's are.
template <typename T, typename Tile, bool kTermsC, bool kTermsB>
struct SampledCopies {
  using TileC = GatheredTile<T, Tile, Tile::kM, kTermsC>;
  using TileB = GatheredTile<T, Tile, Tile::kN, kTermsB>;
  static constexpr int kTerms = Tile::kStepBytes / sizeof(T);
  static constexpr int kBytesC = Tile::kM * Tile::kStepBytes;

  const SampledArgumentsSm80& args;
  const int* const table;
  const int steps_each = static_cast<int>((args.n + kTerms - 1) / kTerms);  // of a matrix
  const int steps = steps_each * static_cast<int>(args.batch);
  Gathered<T> c{static_cast<const T*>(args.c), args.ldc, args.c_alignment};
  Gathered<T> b{static_cast<const T*>(args.b), args.ldb, args.b_alignment};
  int next = 0;  // step within the matrices of the batch that are copied
  const uint32_t c_line = static_cast<uint32_t>(args.ldc * sizeof(T));
  const uint32_t b_line = static_cast<uint32_t>(args.ldb * sizeof(T));

  // Whether there is such a step, the next to be copied, and all of its terms exist.
  __device__ __forceinline__ bool is_straight(int step) const {
    return step < steps && args.straight && (next + int64_t{1}) * kTerms <= args.n;
  }
  __device__ __forceinline__ void start_a(uint32_t stage, bool wanted) const {
    TileC::start(stage, c.data, c_line, table, int64_t{next} * kTerms, wanted);
  }
  __device__ __forceinline__ void start_b(uint32_t stage, bool wanted) const {
    TileB::start(stage + kBytesC, b.data, b_line, table + Tile::kM, int64_t{next} * kTerms, wanted);
  }
  // Any step, with what is missing as zeros.
  __device__ __forceinline__ void load(uint32_t stage) const {
    const int64_t from = int64_t{next} * kTerms;
    TileC::load(stage, c, table, from, args.n);
    TileB::load(stage + kBytesC, b, table + Tile::kM, from, args.n);
  }
  __device__ __forceinline__ void advance() {
    const bool wraps = ++next == steps_each;
    if (wraps) next = 0;
    c.data += wraps ? args.c_batch_stride : 0;
    b.data += wraps ? args.b_batch_stride : 0;
  }
};

// The tile, which has been gathered in shared memory, in runs as long as a block's rows.
template <typename T, typename Tile>
__device__ __forceinline__ void store_values(const SampledArgumentsSm80& args, const T* staged,
                                             const int* table, int64_t first, int m0, int k0) {
  constexpr int kChunks = Tile::kN / kChunk<T>;
  const int64_t block_size = int64_t{args.block_m} * args.block_k;
  T* values = static_cast<T*>(args.sampled) + first * block_size + k0;
#pragma unroll 2
  for (int i = threadIdx.x; i < Tile::kM * kChunks; i += Tile::kThreads) {
    const int row = i / kChunks, column = i % kChunks * kChunk<T>;
    if (m0 + row >= args.block_m || table[Tile::kM + column] < 0) continue;
    const int block = args.strips_k > 1 ? 0 : column / args.block_k;
    T* to =
        values + block * (block_size - args.block_k) + int64_t{m0 + row} * args.block_k + column;
    const T* from = staged + row * staged_line<T>(Tile::kN) + column;
    if (args.values_alignment >= kChunkBytes) {
      *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
    } else {
#pragma unroll 1
      for (int j = 0; j < kChunk<T>; ++j) to[j] = from[j];
    }
  }
}

template <typename T, typename Tile, bool kTermsC, bool kTermsB>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kResident)
    sampled_sm80_kernel(const __grid_constant__ SampledArgumentsSm80 args) {
  // The ring, which Fragments wants aligned to 256 bytes, and behind it the table of lines.
  extern __shared__ __align__(256) char shared[];
  int* const table = reinterpret_cast<int*>(shared + Tile::kStages * Tile::kStageBytes);
  auto& block_row = *reinterpret_cast<int64_t*>(table + Tile::kM + Tile::kN);

  const auto strips = static_cast<unsigned>(args.strips_m * args.strips_k);
  const int64_t tile = blockIdx.x / strips;
  const int strip_m = static_cast<int>(blockIdx.x % strips) / args.strips_k;
  const int strip_k = static_cast<int>(blockIdx.x % strips) % args.strips_k;
  if (threadIdx.x == 0) block_row = row_of_sampled_tile(args, tile);
  __syncthreads();
  const int64_t row_begin = load_index(args.crow_indices, block_row, args.wide_indices);
  const int64_t row_end = load_index(args.crow_indices, block_row + 1, args.wide_indices);
  const int64_t first = row_begin + (tile - row_begin / args.blocks - block_row) * args.blocks;
  if (first >= row_end) return;
  const auto blocks = static_cast<int>(min(row_end - first, int64_t{args.blocks}));

  const int m0 = strip_m * Tile::kM, k0 = strip_k * Tile::kN;
  list_lines<Tile>(args, table, block_row, first, blocks, m0, k0);
  __syncthreads();

  SampledCopies<T, Tile, kTermsC, kTermsB> copies{args, table};
  float sum[Tile::kWarpM * Tile::kWarpN / 32] = {};
  // The tile's columns are those of op(A)^T: what has terms contiguous is column-major to
  // Fragments.
  multiply_steps<Fragments<T, Tile, !kTermsC, !kTermsB>, Tile>(
      static_cast<uint32_t>(__cvta_generic_to_shared(shared)), copies.steps, copies, sum);

  // The tile is gathered in shared memory, to be written in runs as long as a block's rows.
  T* const staged = reinterpret_cast<T*>(shared);
  stage_rows<T, Tile>(sum, staged);
  __syncthreads();
  store_values<T, Tile>(args, staged, table, first, m0, k0);
}

template <typename T, typename Tile, bool kTermsC, bool kTermsB>
constinit KernelCode<SampledArgumentsSm80> sampled_code_sm80{
    &sampled_sm80_kernel<T, Tile, kTermsC, kTermsB>};

template <typename T, typename Tile>
constexpr SampledCodes<SampledArgumentsSm80> kSampledCodesSm80{
    {{&sampled_code_sm80<T, Tile, true, true>, &sampled_code_sm80<T, Tile, true, false>},
     {&sampled_code_sm80<T, Tile, false, true>, &sampled_code_sm80<T, Tile, false, false>}}};

// A tile's kernels, by DType.
struct SampledCodesSm80 {
  SampledCodes<SampledArgumentsSm80> of[3];
};

template <typename Tile>
constexpr SampledCodesSm80 make_sampled_codes_sm80() {
  return {{kSampledCodesSm80<__half, Tile>, kSampledCodesSm80<__nv_bfloat16, Tile>,
           kSampledCodesSm80<float, Tile>}};
}

// make_sampled_codes_sm80<Tile>(), which sampled_narrow_sm80.cu compiles.
template <typename Tile>
SampledCodesSm80 sampled_codes_sm80();

// Rows, columns, bytes of a step, stages, warps along m and n, thread blocks a multiprocessor.
using SampledM128N128 = MmaTile<128, 128, 128, 3, 2, 2, 2>;
using SampledM64N128 = MmaTile<64, 128, 128, 3, 2, 2, 3>;
using SampledM32N128 = MmaTile<32, 128, 128, 4, 1, 4, 3>;
using SampledM16N128 = MmaTile<16, 128, 128, 4, 1, 4, 3>;

}  // namespace sparse_autotune
