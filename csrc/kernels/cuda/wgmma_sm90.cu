// Hopper's warpgroup tensor cores, fed by TMA: large blocks of half precision.
//
// One persistent thread block a multiprocessor works through tiles of C: kM rows of one block row
// (a strip, when the block is taller) by kN columns. Steps of 64 k walk the block row's stored
// blocks. One producer warp keeps TMA copies on their way to two rings in shared memory, A's tiles
// of kM x 64 and B's of 64 x kWidth, across the ends of tiles; a second finds the next tile, the
// longest rows first; two consumer warpgroups multiply.
// Tall tiles (kM = 128): each consumer has 64 rows and all columns, so they share B.
// Flat tiles (kM = 64): each consumer has half of the columns, so they share A.
// Data path: TMA -> shared memory -> wgmma, fp32 sums in registers -> packed in registers
// -> stmatrix, while the next tile is multiplied -> TMA.
// Requires: fp16 or bf16, block_m a multiple of kM and block_k of 64, 16-byte alignment everywhere.
// Wins: blocks of 64 and 128 from n = 64 up. Bound by L2 -> shared memory traffic at 64,
// kM * kN / (kM + kN) FLOP a byte, and by the tensor cores at 128.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "kernels/cuda/device/wgmma_pipeline.cuh"
#include "kernels/cuda/kernel_code.h"
#include "kernels/cuda/tensor_map.h"
#include "kernels/cuda/tile_counters.h"
#include "variant.h"

namespace sparse_autotune {
namespace {

template <typename T, typename Tile, bool kRowMajorB>
__global__ void __launch_bounds__(kThreads, 1)
    wgmma_sm90_kernel(const __grid_constant__ WgmmaArguments args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ char memory[];
  const Shared<Tile> shared(static_cast<uint32_t>(__cvta_generic_to_shared(memory)));
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  if (threadIdx.x == 0) {
    tma_prefetch_map(args.a);
    tma_prefetch_map(args.b);
    tma_prefetch_map(args.c);
    shared.init_barriers();
  }
  // The launch before this one may not be over yet, and the next one may get ready from here on.
  asm volatile("griddepcontrol.wait;\ngriddepcontrol.launch_dependents;\n" ::: "memory");
  __syncthreads();
  // 40 + 2 * 232 registers for a thread of each warpgroup: the 3 * 168 that were launched.
  if (warp < 4) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;\n");
    if (warp == 0) produce<Tile, kRowMajorB>(args, shared);
    if (warp == 1) schedule<Tile>(args, shared);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;\n");
    consume<T, Tile, kRowMajorB>(args, shared, warp / 4 - 1);
  }
#else
  __trap();
#endif
}

constexpr bool kOverlaps = true;

template <typename T, typename Tile, bool kRowMajorB>
constinit KernelCode<WgmmaArguments> code{&wgmma_sm90_kernel<T, Tile, kRowMajorB>, kOverlaps};

// A tile as the host sees it.
struct Shape {
  int m, n, width, shared_bytes;
  KernelCode<WgmmaArguments>* codes[2][2];  // by DType and Layout of B
};

template <typename Tile>
constexpr Shape shape_of() {
  static_assert(Tile::kSharedBytes <= 227 * 1024);  // a Hopper multiprocessor's
  return {Tile::kM,
          Tile::kN,
          Tile::kWidth,
          Tile::kSharedBytes,
          {{&code<__half, Tile, true>, &code<__half, Tile, false>},
           {&code<__nv_bfloat16, Tile, true>, &code<__nv_bfloat16, Tile, false>}}};
}

// Microseconds, fitted to times on an H200: of a step of 64 k with B row-major, with B
// column-major, and where L2 is not what it waits for; of a tile besides its steps.
struct Pace {
  double row_us, column_us, alone_us, tile_us;
};

class WgmmaSm90 final : public Variant {
 public:
  WgmmaSm90(std::string_view name, const Shape& shape, const Pace& pace)
      : Variant(DeviceType::kCuda, name), shape_(shape), pace_(pace) {}

  Support supports(const Problem& p, const Device& d) const override {
    if (p.transpose) return Support::no("wgmma_sm90 computes A @ B, not A^T @ B");
    if (!is_half(p.dtype)) return Support::no("wgmma_sm90 multiplies fp16 and bf16 only");
    if (d.compute_capability != 90) return Support::no("needs compute capability 9.0");
    if (p.block_m % shape_.m != 0 || p.block_k % kStepK != 0) {
      return Support::no("needs block_m a multiple of " + std::to_string(shape_.m) +
                         " and block_k of 64, got " + std::to_string(p.block_m) + "x" +
                         std::to_string(p.block_k));
    }
    if (p.nnzb == 0) return Support::no("there is no stored block");
    if (shape_.n > kNarrowest && ceil_div(p.n, shape_.n) * shape_.n >= 2 * p.n) {
      return Support::no("at least half of the " + std::to_string(shape_.n) +
                         "-column tiles would be idle on " + std::to_string(p.n) + " columns");
    }
    const int alignment = std::min({p.values_alignment, p.b_alignment, p.c_alignment});
    if (alignment < 16) {
      return Support::no(
          "TMA needs addresses, leading dimensions and batch strides of values, B and C that are "
          "multiples of 16 bytes, one is a multiple of " +
          std::to_string(alignment));
    }
    if (p.c_layout == Layout::kRowMajor && p.n % 8 != 0) {
      return Support::no("TMA writes rows of C in units of 8 elements, " + std::to_string(p.n) +
                         " columns leave a part of one");
    }
    const int64_t longest =
        std::max({p.ldb, p.ldc, p.b_batch_stride, p.c_batch_stride}) * size_of(p.dtype);
    if (p.nnzb * p.block_m > INT32_MAX || std::max({p.m, p.n, p.k}) > INT32_MAX ||
        tiles(p) > INT32_MAX || longest >= int64_t{1} << 40) {
      return Support::no("a size is beyond TMA's 32-bit coordinates or 40-bit strides");
    }
    return code_of(p)->runs_on(d, shape_.shared_bytes);
  }

  double estimate_us(const Problem& p, const Device& d) const override {
    const double steps = static_cast<double>(p.nnzb) * p.block_k / kStepK / block_rows(p);
    const double longest = static_cast<double>(p.longest_row) * p.block_k / kStepK;
    const double each = static_cast<double>(tiles(p)) / std::max(d.multiprocessors, 1);
    // The fewer multiprocessors are at work, the less each waits for L2.
    const double busy_us = p.b_layout == Layout::kRowMajor ? pace_.row_us : pace_.column_us;
    const double step_us = std::max(pace_.alone_us, busy_us * std::min(each, 1.0));
    const double work_us = std::max(longest * step_us + pace_.tile_us,
                                    std::ceil(each) * (steps * step_us + pace_.tile_us));
    constexpr double kStartUs = 3.0;
    return std::max(work_us, compulsory_bytes(p) / (d.memory_gbps * 850)) + kStartUs;
  }

  bool wants_row_order(const Problem&) const override { return true; }

  Status launch(const Problem& p, const Launch& l) const override {
    WgmmaArguments a{};
    const auto m = static_cast<uint32_t>(shape_.m), width = static_cast<uint32_t>(shape_.width);
    const bool b_rows = p.b_layout == Layout::kRowMajor, c_rows = p.c_layout == Layout::kRowMajor;
    a.b_batched = p.b_batch_stride != 0;
    // The stride of a dimension of one element is never used, but must be one that TMA takes.
    const int64_t b_stride = a.b_batched ? p.b_batch_stride : p.ldb;
    const int64_t c_stride = p.c_batch_stride != 0 ? p.c_batch_stride : p.ldc;
    const int64_t b_batch = a.b_batched ? p.batch : 1;

    const BoxedTensor values{l.values,    p.dtype,    2, {p.block_k, p.nnzb * p.block_m},
                             {p.block_k}, {kStepK, m}};
    const BoxedTensor b = {l.b,
                           p.dtype,
                           3,
                           {b_rows ? p.n : p.k, b_rows ? p.k : p.n, b_batch},
                           {p.ldb, b_stride},
                           {64, b_rows ? kStepK : width, 1}};
    const BoxedTensor c = {l.c,
                           p.dtype,
                           3,
                           {c_rows ? p.n : p.m, c_rows ? p.m : p.n, p.batch},
                           {p.ldc, c_stride},
                           {64, 64, 1}};
    Status status = make_tensor_map(values, &a.a);
    if (status) status = make_tensor_map(b, &a.b);
    if (status) status = make_tensor_map(c, &a.c);
    if (!status) return status;

    a.crow_indices = l.crow_indices;
    a.col_indices = l.col_indices;
    a.bias = l.bias;
    a.panels.tiles = static_cast<unsigned>(tiles(p));
    a.panels.rows = static_cast<unsigned>(p.m / shape_.m);
    a.panels.columns = static_cast<unsigned>(ceil_div(p.n, shape_.n));
    a.panels.width = panel_width(p);
    a.panels.order = l.row_order;
    a.n = static_cast<int>(p.n);
    a.block_m = static_cast<int>(p.block_m);
    a.block_k = static_cast<int>(p.block_k);
    a.strips = static_cast<int>(p.block_m / shape_.m);
    a.activation = p.activation;
    a.wide_indices = p.index_type == IndexType::kInt64;
    a.c_rows = c_rows;
    const auto blocks =
        static_cast<unsigned>(std::min<int64_t>(tiles(p), l.device->multiprocessors));
    // Two rounds are dealt out before there is anything to share.
    if (a.panels.tiles > 2 * blocks) {
      a.panels.counter = tile_counter(l.device->ordinal, static_cast<cudaStream_t>(l.stream));
    }
    return code_of(p)->launch(a, blocks, kThreads, shape_.shared_bytes, l.stream, name());
  }

 private:
  static constexpr int kNarrowest = 64;
  // Of B, on an H200 with its 60 MB of L2: what stays there beside what streams by, and what is not
  // worth dividing, as each panel reads all of A.
  static constexpr int64_t kPanelBytes = 16 << 20;
  static constexpr int64_t kWholeBytes = 32 << 20;

  int64_t tiles(const Problem& p) const {
    return p.m / shape_.m * ceil_div(p.n, shape_.n) * p.batch;
  }
  unsigned panel_width(const Problem& p) const {
    const int64_t columns = ceil_div(p.n, shape_.n), bytes = p.k * size_of(p.dtype);  // of one
    if (bytes * p.n <= kWholeBytes) return static_cast<unsigned>(columns);
    const int64_t fit = std::max<int64_t>(kPanelBytes / (bytes * shape_.n), 1);
    return static_cast<unsigned>(ceil_div(columns, ceil_div(columns, fit)));
  }
  KernelCode<WgmmaArguments>* code_of(const Problem& p) const {
    return shape_.codes[static_cast<int>(p.dtype)][static_cast<int>(p.b_layout)];
  }

  Shape shape_;
  Pace pace_;
  Registration registration_{*this};
};

// Rows, columns, stages of A's ring, stages of B's ring.
const WgmmaSm90 kM128N256{
    "wgmma_sm90/m128_n256", shape_of<WgmmaTile<128, 256, 4, 4>>(), {0.84, 0.86, 0.75, 0.50}};
const WgmmaSm90 kM128N128{
    "wgmma_sm90/m128_n128", shape_of<WgmmaTile<128, 128, 6, 6>>(), {0.40, 0.40, 0.33, 1.20}};
const WgmmaSm90 kM128N64{
    "wgmma_sm90/m128_n64", shape_of<WgmmaTile<128, 64, 8, 8>>(), {0.33, 0.30, 0.24, 0.30}};
const WgmmaSm90 kM64N512{
    "wgmma_sm90/m64_n512", shape_of<WgmmaTile<64, 512, 4, 5>>(), {1.06, 1.08, 0.77, 0.50}};
const WgmmaSm90 kM64N256{
    "wgmma_sm90/m64_n256", shape_of<WgmmaTile<64, 256, 5, 9>>(), {0.52, 0.50, 0.27, 1.10}};
const WgmmaSm90 kM64N128{
    "wgmma_sm90/m64_n128", shape_of<WgmmaTile<64, 128, 8, 16>>(), {0.48, 0.34, 0.29, 0.30}};

}  // namespace
}  // namespace sparse_autotune
