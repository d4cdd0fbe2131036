// Tensor cores through mma.sync for sampled products: the portable fast kernel, from Ampere on.
//
// A thread block owns kM rows of one block row (a strip) against up to kN columns of its stored
// blocks, which lie side by side in the tile: they share the strip of C. Steps of kStepBytes walk
// the terms of the sums, through the batch.
// Data path: cp.async keeps `stages` - 1 steps on their way to a ring in shared memory -> ldmatrix
// -> mma.sync, fp32 sums in registers -> values.
// Which tile is whose needs no plan: row r's tiles begin at number crow[r] / blocks + r, which
// leaves room for all of them; at most one thread block a row has nothing to do.
// Requires: fp16, bf16, or fp32 with TF32 allowed; block sides that are multiples of 16. Any n, any
// layout, any alignment (16 bytes is fastest).
// Wins: where no Hopper kernel applies. Bound by L2 -> shared memory traffic,
// kM * kN / (kM + kN) FLOP a byte.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <string>

#include "kernels/cuda/device/fragments.cuh"
#include "kernels/cuda/device/gathered_tile.cuh"
#include "kernels/cuda/device/load_index.cuh"
#include "kernels/cuda/device/mma_tile.cuh"
#include "kernels/cuda/kernel_code.h"
#include "variant.h"

namespace sparse_autotune {
namespace {

struct Arguments {
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
};

// The last row whose tiles begin at or before number `tile`.
__device__ __forceinline__ int64_t row_of_tile(const Arguments& args, int64_t tile) {
  int64_t low = 0, high = args.block_rows;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    const int64_t begin =
        load_index(args.crow_indices, middle, args.wide_indices) / args.blocks + middle;
    (begin <= tile ? low : high) = middle;
  }
  return low;
}

template <typename T>
__device__ __forceinline__ void store_pair(T* to, float low, float high, bool packed) {
  if (packed && sizeof(T) == 2) {
    T pair[2] = {static_cast<T>(low), static_cast<T>(high)};
    *reinterpret_cast<uint32_t*>(to) = *reinterpret_cast<const uint32_t*>(pair);
  } else {
    to[0] = static_cast<T>(low);
    to[1] = static_cast<T>(high);
  }
}

// kTermsC: C's terms are contiguous (it is row-major); kTermsB: B's are.
template <typename T, typename Tile, bool kTermsC, bool kTermsB>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kResident)
    sampled_sm80_kernel(const __grid_constant__ Arguments args) {
  // The ring, which Fragments wants aligned to 256 bytes, and behind it the table of lines.
  extern __shared__ __align__(256) char shared[];
  int* const table = reinterpret_cast<int*>(shared + Tile::kStages * Tile::kStageBytes);
  auto& block_row = *reinterpret_cast<int64_t*>(table + Tile::kM + Tile::kN);
  const auto ring = static_cast<uint32_t>(__cvta_generic_to_shared(shared));

  const auto strips = static_cast<unsigned>(args.strips_m * args.strips_k);
  const int64_t tile = blockIdx.x / strips;
  const int strip_m = static_cast<int>(blockIdx.x % strips) / args.strips_k;
  const int strip_k = static_cast<int>(blockIdx.x % strips) % args.strips_k;
  if (threadIdx.x == 0) block_row = row_of_tile(args, tile);
  __syncthreads();
  const int64_t row_begin = load_index(args.crow_indices, block_row, args.wide_indices);
  const int64_t row_end = load_index(args.crow_indices, block_row + 1, args.wide_indices);
  const int64_t first = row_begin + (tile - row_begin / args.blocks - block_row) * args.blocks;
  if (first >= row_end) return;
  const auto blocks = static_cast<int>(min(row_end - first, int64_t{args.blocks}));

  const int m0 = strip_m * Tile::kM, k0 = strip_k * Tile::kN;
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
  __syncthreads();

  constexpr int kTerms = Tile::kStepBytes / sizeof(T);
  const auto steps_each = static_cast<int>((args.n + kTerms - 1) / kTerms);
  const int64_t steps = steps_each * args.batch;
  Gathered<T> c{static_cast<const T*>(args.c), args.ldc, args.c_alignment};
  Gathered<T> b{static_cast<const T*>(args.b), args.ldb, args.b_alignment};
  int next = 0;  // step within the matrices of the batch that are copied
  const auto load_step = [&](uint32_t stage) {
    const int64_t from = int64_t{next} * kTerms;
    if constexpr (kTermsC) {
      load_lines<T, Tile, Tile::kM>(stage, c, table, from, args.n);
    } else {
      load_terms<T, Tile, Tile::kM>(stage, c, table, from, args.n);
    }
    const uint32_t to = stage + Tile::kM * Tile::kStepBytes;
    if constexpr (kTermsB) {
      load_lines<T, Tile, Tile::kN>(to, b, table + Tile::kM, from, args.n);
    } else {
      load_terms<T, Tile, Tile::kN>(to, b, table + Tile::kM, from, args.n);
    }
    if (++next == steps_each) {
      next = 0;
      c.data += args.c_batch_stride;
      b.data += args.b_batch_stride;
    }
  };

  // The tile's columns are those of op(A)^T: what has terms contiguous is column-major to
  // Fragments.
  using Registers = Fragments<T, Tile, !kTermsC, !kTermsB>;
  const uint32_t c_offset = Registers::a_offset();
  const uint32_t b_offset = Registers::b_offset() + Tile::kM * Tile::kStepBytes;
  float sum[Tile::kWarpM * Tile::kWarpN / 32] = {};

  // Each turn computes one step and starts the copies of the step kStages - 1 ahead; the first
  // turns only copy. `filled` is the stage that the turn's copies go to.
  uint32_t filled = ring;
  for (int64_t step = 1 - Tile::kStages; step < steps; ++step) {
    const uint32_t stage = filled + Tile::kStageBytes == ring + Tile::kStages * Tile::kStageBytes
                               ? ring
                               : filled + Tile::kStageBytes;
    Registers registers[2];
    if (step >= 0) {
      cp_async_wait<Tile::kStages - 2>();
      __syncthreads();
      registers[0].load(stage + c_offset, stage + b_offset, 0);
    }
    if (step + Tile::kStages - 1 < steps) load_step(filled);
    cp_async_commit();
    filled = stage;
    if (step < 0) continue;
#pragma unroll
    for (int slice = 0; slice < Tile::kSlices; ++slice) {
      if (slice + 1 < Tile::kSlices) {
        registers[(slice + 1) % 2].load(stage + c_offset, stage + b_offset, slice + 1);
      }
      registers[slice % 2].multiply(sum);
    }
  }
  cp_async_wait<0>();

  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int row0 = warp / Tile::kWarpsN * Tile::kWarpM + lane / 4;
  const int column0 = warp % Tile::kWarpsN * Tile::kWarpN + lane % 4 * 2;
  const int64_t block_size = int64_t{args.block_m} * args.block_k;
  T* values = static_cast<T*>(args.sampled) + first * block_size;
  const bool packed = args.values_alignment >= 4;
#pragma unroll
  for (int j = 0; j < Tile::kWarpN / 8; ++j) {
    const int column = column0 + 8 * j;
    if (table[Tile::kM + column] < 0) continue;
    const int block = args.strips_k > 1 ? 0 : column / args.block_k;
    T* to = values + block * block_size + k0 + column - block * args.block_k;
#pragma unroll
    for (int i = 0; i < Tile::kWarpM / 16; ++i) {
      const float* x = sum + (i * Tile::kWarpN / 8 + j) * 4;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = m0 + row0 + i * 16 + half * 8;
        if (row < args.block_m) {
          store_pair(to + int64_t{row} * args.block_k, x[2 * half], x[2 * half + 1], packed);
        }
      }
    }
  }
}

template <typename T, typename Tile, bool kTermsC, bool kTermsB>
constinit KernelCode<Arguments> sampled_code{&sampled_sm80_kernel<T, Tile, kTermsC, kTermsB>};

// By DType and the layouts of C and B; null where there is no such kernel.
struct Codes {
  KernelCode<Arguments>* of[3][2][2];
};

template <typename T, typename Tile>
constexpr void add_codes(KernelCode<Arguments>* (&of)[2][2]) {
  of[0][0] = &sampled_code<T, Tile, true, true>;
  of[0][1] = &sampled_code<T, Tile, true, false>;
  of[1][0] = &sampled_code<T, Tile, false, true>;
  of[1][1] = &sampled_code<T, Tile, false, false>;
}

// A tile as the host sees it.
struct Shape {
  int m, n, step_bytes, stages, threads, resident;
  Codes codes;
};

template <typename Tile>
constexpr Shape shape_of() {
  Shape shape{Tile::kM,        Tile::kN, Tile::kStepBytes, Tile::kStages, Tile::kThreads,
              Tile::kResident, {}};
  add_codes<__half, Tile>(shape.codes.of[0]);
  add_codes<__nv_bfloat16, Tile>(shape.codes.of[1]);
  add_codes<float, Tile>(shape.codes.of[2]);
  return shape;
}

class SampledSm80 final : public Variant {
 public:
  SampledSm80(std::string_view name, const Shape& shape)
      : Variant(DeviceType::kCuda, name, Op::kSampled), shape_(shape) {}

  Support supports(const Problem& p, const Device& d) const override {
    if (p.dtype == DType::kFloat64) return Support::no("sampled_sm80 has no fp64");
    if (p.dtype == DType::kFloat32 && !p.allow_tf32) {
      return Support::no("multiplies fp32 in TF32, which the caller's settings do not allow");
    }
    if (d.compute_capability < 80) return Support::no("needs compute capability 8.0 or newer");
    if (p.block_m % 16 != 0 || p.block_k % 16 != 0) {
      return Support::no("needs block sides that are multiples of 16, got " +
                         std::to_string(p.block_m) + "x" + std::to_string(p.block_k));
    }
    if (strips_m(p) * shape_.m >= 2 * p.block_m) {
      return Support::no("at least half of each " + std::to_string(shape_.m) +
                         "-row tile would be idle on blocks of " + std::to_string(p.block_m) +
                         " rows");
    }
    if (std::max({p.m, p.k, p.block_m * p.block_k}) > INT32_MAX) {
      return Support::no("a block, m or k has more than 2^31 - 1 elements");
    }
    if (thread_blocks(p) > INT32_MAX) {
      return Support::no("more than 2^31 - 1 thread blocks in a grid");
    }
    return code_of(p)->runs_on(d, shared_bytes());
  }

  double estimate_us(const Problem& p, const Device& d) const override {
    const double multiprocessors = std::max(d.multiprocessors, 1);
    const double terms = static_cast<double>(sampled_length(p)), size = size_of(p.dtype);
    const double row_blocks = static_cast<double>(p.nnzb) / static_cast<double>(block_rows(p));
    // What a row's last tile has is anything from one block to all that fit: half on average.
    const double tiles = static_cast<double>(block_rows(p)) *
                         (row_blocks / static_cast<double>(blocks(p)) + 0.5) * strips(p);
    const double flops = 2.0 * shape_.m * shape_.n * terms;
    const double bytes = (shape_.m + shape_.n) * terms * size;
    const bool hopper = d.compute_capability >= 90;
    const int alignment = std::min(p.b_alignment, p.c_alignment);
    const double access = alignment >= 16 ? 1 : alignment >= 4 ? 0.4 : 0.15;
    const double tflops = peak_tflops(p, d) * (hopper ? 0.5 : 0.7) / multiprocessors;
    const double gbps = (hopper ? 60.0 : 40.0) * access;
    const double work_us = std::max(flops / (tflops * 1e6), bytes / (gbps * 1e3));
    constexpr double kLatencyUs = 0.7, kRampUs = 1.2;
    const double steps = terms * size / shape_.step_bytes;
    const double latency_us = kRampUs + steps * kLatencyUs / (shape_.stages - 1);
    const double waves = std::ceil(tiles / (shape_.resident * multiprocessors));
    return roofline_us(0, 0, compulsory_bytes(p), d.memory_gbps * 0.85, 2.5) +
           std::max(std::max(1.0, tiles / multiprocessors + 0.5) * work_us, waves * latency_us);
  }

  Status launch(const Problem& p, const Launch& l) const override {
    Arguments a{};
    a.crow_indices = l.crow_indices;
    a.col_indices = l.col_indices;
    a.c = l.c;
    a.b = l.b;
    a.sampled = l.sampled;
    a.n = p.n;
    a.batch = p.batch;
    a.ldb = p.ldb;
    a.ldc = p.ldc;
    a.b_batch_stride = p.b_batch_stride;
    a.c_batch_stride = p.c_batch_stride;
    a.block_rows = block_rows(p);
    a.block_m = static_cast<int>(p.block_m);
    a.block_k = static_cast<int>(p.block_k);
    a.blocks = static_cast<int>(blocks(p));
    a.strips_m = static_cast<int>(strips_m(p));
    a.strips_k = static_cast<int>(strips_k(p));
    a.b_alignment = p.b_alignment;
    a.c_alignment = p.c_alignment;
    a.values_alignment = p.values_alignment;
    a.wide_indices = p.index_type == IndexType::kInt64;
    return code_of(p)->launch(a, static_cast<unsigned>(thread_blocks(p)), shape_.threads,
                              shared_bytes(), l.stream, name());
  }

 private:
  int64_t strips_m(const Problem& p) const { return ceil_div(p.block_m, shape_.m); }
  int64_t strips_k(const Problem& p) const { return ceil_div(p.block_k, shape_.n); }
  int64_t strips(const Problem& p) const { return strips_m(p) * strips_k(p); }
  // Side by side in a tile.
  int64_t blocks(const Problem& p) const { return std::max<int64_t>(shape_.n / p.block_k, 1); }
  int64_t thread_blocks(const Problem& p) const {
    return (p.nnzb / blocks(p) + block_rows(p)) * strips(p);
  }
  int64_t shared_bytes() const {
    const int64_t lines = shape_.m + shape_.n, size = sizeof(int64_t);
    return lines * (shape_.stages * shape_.step_bytes + static_cast<int64_t>(sizeof(int))) + size;
  }
  KernelCode<Arguments>* code_of(const Problem& p) const {
    return shape_.codes
        .of[static_cast<int>(p.dtype)][static_cast<int>(p.c_layout)][static_cast<int>(p.b_layout)];
  }

  Shape shape_;
  Registration registration_{*this};
};

// Rows, columns, bytes of a step, stages, warps along m and n, thread blocks a multiprocessor.
const SampledSm80 kM128N128{"sampled_sm80/m128_n128",
                            shape_of<MmaTile<128, 128, 128, 3, 2, 2, 2>>()};
const SampledSm80 kM64N128{"sampled_sm80/m64_n128", shape_of<MmaTile<64, 128, 128, 3, 2, 2, 3>>()};
const SampledSm80 kM32N128{"sampled_sm80/m32_n128", shape_of<MmaTile<32, 128, 128, 4, 1, 4, 3>>()};
const SampledSm80 kM16N128{"sampled_sm80/m16_n128", shape_of<MmaTile<16, 128, 128, 4, 1, 4, 3>>()};

}  // namespace
}  // namespace sparse_autotune
