// Tensor cores through mma.sync: the portable fast kernel, from Ampere on.
//
// A thread block owns one tile of C: kM rows of one block row (a strip; a block taller than kM has
// several) by kN columns. Steps of kStepBytes along k walk the block row's stored blocks as if they
// stood side by side, in slices of 32 bytes (16 halves, 8 floats): a step may span several blocks,
// a block several steps.
// Data path: cp.async keeps `stages` - 1 steps of A and B on their way to a ring in shared memory
// -> ldmatrix -> mma.sync, fp32 accumulators -> shared memory -> C.
// Requires: fp16, bf16, or fp32 with TF32 allowed; block sides that are multiples of 16. Any n, any
// alignment (16 bytes is fastest).
// Wins: most blocks from 16 up, where no Hopper kernel applies. Bound by L2 -> shared memory
// traffic for blocks up to 64: kM * kN / (kM + kN) FLOP a byte.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "kernels/cuda/device/cp_async.cuh"
#include "kernels/cuda/device/epilogue.cuh"
#include "kernels/cuda/device/fragments.cuh"
#include "kernels/cuda/device/tile_loader.cuh"
#include "kernels/cuda/kernel_code.h"
#include "variant.h"

namespace sparse_autotune {
namespace {

// A tile of C, the bytes of k in one step, the steps in flight, the warps that share the tile, and
// how many thread blocks of it a multiprocessor should hold (which bounds the registers).
template <int kRows, int kColumns, int kBytes, int kDepth, int kWarpRows, int kWarpColumns,
          int kBlocks>
struct Tile {
  static constexpr int kM = kRows, kN = kColumns, kStepBytes = kBytes;
  static constexpr int kStages = kDepth, kResident = kBlocks;
  static constexpr int kWarpsN = kWarpColumns, kThreads = 32 * kWarpRows * kWarpColumns;
  static constexpr int kWarpM = kM / kWarpRows, kWarpN = kN / kWarpColumns;
  static constexpr int kSlices = kStepBytes / kSliceBytes;
  static constexpr int kStageBytes = (kM + kN) * kStepBytes;
  // Powers of two, so that offsets within a tile can be XORed.
  static_assert(kWarpM % 16 == 0 && kWarpN % 16 == 0 && (kWarpN & (kWarpN - 1)) == 0);
  static_assert((kM & (kM - 1)) == 0 && (kN & (kN - 1)) == 0 && kStages >= 2);
};

struct Arguments {
  const void* crow_indices;
  const void* col_indices;
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

__device__ __forceinline__ int64_t load_index(const void* indices, int64_t i, bool wide) {
  return wide ? __ldg(static_cast<const long long*>(indices) + i)
              : __ldg(static_cast<const int*>(indices) + i);
}

// A slice of the block row: `slice` of its stored block number `block`.
struct Cursor {
  int block = 0, slice;

  __device__ __forceinline__ Cursor(int slice_of_step, const Arguments& args)
      : slice(slice_of_step) {
    for (; slice >= args.slices; slice -= args.slices) ++block;
  }
  __device__ __forceinline__ void advance(const Arguments& args) {
    block += args.step_blocks;
    slice += args.step_slices;
    if (slice >= args.slices) {
      slice -= args.slices;
      ++block;
    }
  }
};

template <typename T, typename Tile, bool kRowMajorB>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kResident)
    mma_sm80_kernel(const __grid_constant__ Arguments args) {
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

  using LoadA = LineLoader<T, Tile, Tile::kM>;
  Cursor a_at(LoadA::slice(), args);
  const int64_t block_size = static_cast<int64_t>(args.block_m) * args.block_k;
  const T* const a = static_cast<const T*>(args.values) + begin * block_size +
                     static_cast<int64_t>(m0 + LoadA::line()) * args.block_k + LoadA::element();

  using LoadB = std::conditional_t<kRowMajorB, RowLoader<T, Tile>, LineLoader<T, Tile, Tile::kN>>;
  Cursor b_at(LoadB::slice(), args);
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
    const T* a_from = a + a_at.block * block_size + a_at.slice * kSlice<T>;
    LoadA::load(stage, a_from, args.block_k, a_at.block < length ? rows : 0, args.values_alignment,
                args.values);
    a_at.advance(args);

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

  using Registers = Fragments<T, Tile, kRowMajorB>;
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

template <typename T, typename Tile, bool kRowMajorB>
constinit KernelCode<Arguments> code{&mma_sm80_kernel<T, Tile, kRowMajorB>};

// A tile as the host sees it.
struct Shape {
  int m, n, step_bytes, stages, threads, resident;
  KernelCode<Arguments>* codes[3][2];  // by DType and Layout of B; null where it was not compiled
};

// TF32 needs twice the threads for a row of B: wide tiles of few threads go without.
template <typename Tile, bool kTf32 = true>
constexpr Shape shape_of() {
  Shape s{Tile::kM, Tile::kN, Tile::kStepBytes, Tile::kStages, Tile::kThreads, Tile::kResident, {}};
  s.codes[0][0] = &code<__half, Tile, true>;
  s.codes[0][1] = &code<__half, Tile, false>;
  s.codes[1][0] = &code<__nv_bfloat16, Tile, true>;
  s.codes[1][1] = &code<__nv_bfloat16, Tile, false>;
  if constexpr (kTf32) {
    s.codes[2][0] = &code<float, Tile, true>;
    s.codes[2][1] = &code<float, Tile, false>;
  }
  return s;
}

class MmaSm80 final : public Variant {
 public:
  MmaSm80(std::string_view name, const Shape& shape)
      : Variant(DeviceType::kCuda, name), shape_(shape) {}

  Support supports(const Problem& p, const Device& d) const override {
    if (p.transpose) return Support::no("mma_sm80 computes A @ B, not A^T @ B");
    if (p.dtype == DType::kFloat64) return Support::no("mma_sm80 has no fp64");
    if (p.dtype == DType::kFloat32 && !p.allow_tf32) {
      return Support::no("multiplies fp32 in TF32, which the caller's settings do not allow");
    }
    if (code_of(p) == nullptr) return Support::no("this tile has no TF32 form");
    if (d.compute_capability < 80) return Support::no("needs compute capability 8.0 or newer");
    if (p.block_m % 16 != 0 || p.block_k % 16 != 0) {
      return Support::no("needs block sides that are multiples of 16, got " +
                         std::to_string(p.block_m) + "x" + std::to_string(p.block_k));
    }
    if (strips(p) * shape_.m >= 2 * p.block_m) {
      return Support::no("at least half of each " + std::to_string(shape_.m) +
                         "-row tile would be idle on blocks of " + std::to_string(p.block_m) +
                         " rows");
    }
    if (p.block_m * p.block_k > INT32_MAX || p.k > INT32_MAX) {
      return Support::no("a block or k has more than 2^31 - 1 elements");
    }
    if (thread_blocks(p) > INT32_MAX) {
      return Support::no("more than 2^31 - 1 thread blocks in a grid");
    }
    return code_of(p)->runs_on(d, shared_bytes(p));
  }

  double estimate_us(const Problem& p, const Device& d) const override {
    const double size = size_of(p.dtype), multiprocessors = std::max(d.multiprocessors, 1);
    const double row_k =
        static_cast<double>(p.nnzb) * p.block_k / std::max<int64_t>(block_rows(p), 1);
    // One thread block: what it multiplies (idle rows and columns too) and what it fetches.
    const double flops = 2.0 * shape_.m * shape_.n * row_k;
    const double lines = std::min<int64_t>(p.block_m, shape_.m) + std::min<int64_t>(p.n, shape_.n);
    const double bytes = row_k * size * lines;
    const bool hopper = d.compute_capability >= 90;
    // mma.sync reaches less of Hopper's tensor cores than of Ampere's. L2 to shared memory: 9.1
    // TB/s measured on an H200; four-byte copies and single halves take more instructions.
    const double tflops = peak_tflops(p, d) * (hopper ? 0.55 : 0.75) / multiprocessors;
    const int alignment = std::min(p.b_alignment, p.values_alignment);
    const double access = alignment >= 16 ? 1 : alignment >= 4 ? 0.4 : 0.15;
    const double gbps = (hopper ? 65.0 : 40.0) * access;
    const double work_us = std::max(flops / (tflops * 1e6), bytes / (gbps * 1e3));

    const double blocks = static_cast<double>(thread_blocks(p));
    const double fits =
        static_cast<double>((d.shared_memory_per_block + 1024) / (shared_bytes(p) + 1024));
    const double resident = std::max(1.0, std::min<double>(shape_.resident, fits));
    const double waves = std::ceil(blocks / (resident * multiprocessors));
    // Full multiprocessors are bound by throughput, with half a thread block's imbalance at the
    // end; few thread blocks by the latency of their steps, `stages` - 1 of which overlap.
    constexpr double kLatencyUs = 0.7, kRampUs = 1.2;
    const double step_us = kLatencyUs / (shape_.stages - 1);
    const double steps = row_k * size / shape_.step_bytes;
    const double throughput = std::max(1.0, blocks / multiprocessors + 0.5) * work_us;
    const double latency = waves * (kRampUs + steps * step_us);
    const double longest = static_cast<double>(p.longest_row) * p.block_k;
    const double tail =
        row_k > 0 ? longest / row_k * std::max(work_us, steps * step_us) + kRampUs : 0;
    return roofline_us(0, 0, compulsory_bytes(p), d.memory_gbps * 0.85, 2.5) +
           std::max({throughput, latency, tail});
  }

  Status launch(const Problem& p, const Launch& l) const override {
    Arguments a{};
    a.crow_indices = l.crow_indices;
    a.col_indices = l.col_indices;
    a.values = l.values;
    a.b = l.b;
    a.bias = l.bias;
    a.c = l.c;
    a.n = p.n;
    a.ldb = p.ldb;
    a.ldc = p.ldc;
    a.b_batch_stride = p.b_batch_stride;
    a.c_batch_stride = p.c_batch_stride;
    a.block_m = static_cast<int>(p.block_m);
    a.block_k = static_cast<int>(p.block_k);
    a.strips = static_cast<int>(strips(p));
    a.grid_rows = static_cast<unsigned>(block_rows(p) * strips(p));
    a.grid_columns = static_cast<unsigned>(ceil_div(p.n, shape_.n));
    a.slices = static_cast<int>(p.block_k * size_of(p.dtype) / kSliceBytes);
    const int step_slices = shape_.step_bytes / kSliceBytes;
    a.step_blocks = step_slices / a.slices;
    a.step_slices = step_slices % a.slices;
    a.values_alignment = p.values_alignment;
    a.b_alignment = p.b_alignment;
    a.c_alignment = p.c_alignment;
    a.activation = p.activation;
    a.wide_indices = p.index_type == IndexType::kInt64;
    a.c_rows = p.c_layout == Layout::kRowMajor;

    return code_of(p)->launch(a, static_cast<unsigned>(thread_blocks(p)), shape_.threads,
                              shared_bytes(p), l.stream, name());
  }

 private:
  int64_t strips(const Problem& p) const { return ceil_div(p.block_m, shape_.m); }
  int64_t thread_blocks(const Problem& p) const {
    return block_rows(p) * strips(p) * ceil_div(p.n, shape_.n) * p.batch;
  }
  int64_t shared_bytes(const Problem& p) const {
    const int64_t ring = int64_t{shape_.stages} * (shape_.m + shape_.n) * shape_.step_bytes;
    return std::max(ring, staged_bytes(shape_.m, shape_.n, size_of(p.dtype), p.activation));
  }
  KernelCode<Arguments>* code_of(const Problem& p) const {
    return shape_.codes[static_cast<int>(p.dtype)][static_cast<int>(p.b_layout)];
  }

  Shape shape_;
  Registration registration_{*this};
};

// Rows, columns, bytes of a step, stages, warps along m and n, thread blocks a multiprocessor.
const MmaSm80 kM128N128{"mma_sm80/m128_n128_s3", shape_of<Tile<128, 128, 128, 3, 2, 2, 2>>()};
const MmaSm80 kM64N256{"mma_sm80/m64_n256_s2", shape_of<Tile<64, 256, 128, 2, 1, 4, 2>, false>()};
const MmaSm80 kM64N128{"mma_sm80/m64_n128_s3", shape_of<Tile<64, 128, 128, 3, 2, 2, 3>>()};
const MmaSm80 kM64N64{"mma_sm80/m64_n64_s3", shape_of<Tile<64, 64, 128, 3, 2, 2, 4>>()};
const MmaSm80 kM32N256{"mma_sm80/m32_n256_s3", shape_of<Tile<32, 256, 128, 3, 1, 4, 2>, false>()};
const MmaSm80 kM16N128{"mma_sm80/m16_n128_s4", shape_of<Tile<16, 128, 128, 4, 1, 4, 3>>()};
const MmaSm80 kM16N32{"mma_sm80/m16_n32_s6", shape_of<Tile<16, 32, 128, 6, 1, 2, 8>>()};

}  // namespace
}  // namespace sparse_autotune
