// The readable CUDA kernel for sampled products: every block size, every dtype, any alignment.
//
// One thread block owns a square tile of one stored block; 16 x 16 threads own 2 x 2 of its
// elements each. It walks the terms of the sums in steps of 16: a step's rows of C and of B go
// through shared memory, loaded along whatever is contiguous. Data path: global -> shared ->
// registers -> global. Accumulates in fp32 (fp64 for fp64). Requires: nothing.
#include <cuda_runtime.h>

#include "kernels/cuda/device/accumulator.cuh"
#include "kernels/cuda/device/load_index.cuh"
#include "kernels/cuda/host/arguments_of.h"
#include "kernels/cuda/host/cuda_status.h"
#include "kernels/cuda/host/element_types.h"
#include "operators/product/product.h"

namespace sparse_autotune {
namespace {

constexpr int kSide = 16;  // threads along either side of a tile
constexpr int kEach = 2;   // elements of a thread, along either
constexpr int kTile = kSide * kEach;
constexpr int kTerms = 16;  // of a sum in shared memory
constexpr int kThreads = kSide * kSide;

// One of the two operands: element (line, term) of matrix t is at
// t * batch + line * line_stride + term * term_stride.
struct Operand {
  const void* data;
  int64_t line_stride, term_stride, batch;
};

struct Arguments {
  const void* crow_indices;
  const void* col_indices;
  Operand c, b;
  void* sampled;
  int64_t block_rows, block_m, block_k, tiles_m, tiles_k, n, batch;
  bool wide_indices;
};

// Lines [0, lines) and terms [0, terms) from `first` on, zeros around them.
template <typename T, int kLines>
__device__ void load_tile(typename Accumulator<T>::Type (&tile)[kLines][kTerms + 1],
                          const Operand& operand, const T* first, int64_t lines, int64_t terms) {
  const bool along_terms = operand.term_stride == 1;
  for (int i = threadIdx.x; i < kLines * kTerms; i += kThreads) {
    const int line = along_terms ? i / kTerms : i % kLines;
    const int term = along_terms ? i % kTerms : i / kLines;
    const bool inside = line < lines && term < terms;
    tile[line][term] = inside ? static_cast<typename Accumulator<T>::Type>(
                                    first[line * operand.line_stride + term * operand.term_stride])
                              : 0;
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads) sampled_simt_kernel(const Arguments a) {
  using Acc = typename Accumulator<T>::Type;
  __shared__ Acc left[kTile][kTerms + 1], right[kTile][kTerms + 1];
  __shared__ int64_t block_row;
  const int64_t tiles = a.tiles_m * a.tiles_k;
  const int64_t block = blockIdx.x / tiles, tile = blockIdx.x % tiles;
  if (threadIdx.x == 0) {
    int64_t low = 0, high = a.block_rows;  // the last row that begins at or before the block
    while (high - low > 1) {
      const int64_t middle = low + (high - low) / 2;
      (load_index(a.crow_indices, middle, a.wide_indices) <= block ? low : high) = middle;
    }
    block_row = low;
  }
  __syncthreads();
  const int64_t row0 = tile / a.tiles_k * kTile, col0 = tile % a.tiles_k * kTile;
  const int64_t block_col = load_index(a.col_indices, block, a.wide_indices);
  const T* c = static_cast<const T*>(a.c.data) + (block_row * a.block_m + row0) * a.c.line_stride;
  const T* b = static_cast<const T*>(a.b.data) + (block_col * a.block_k + col0) * a.b.line_stride;
  const int i = threadIdx.x / kSide, j = threadIdx.x % kSide;
  Acc sum[kEach][kEach] = {};
  for (int64_t matrix = 0; matrix < a.batch; ++matrix, c += a.c.batch, b += a.b.batch) {
    for (int64_t q = 0; q < a.n; q += kTerms) {
      load_tile<T>(left, a.c, c + q * a.c.term_stride, a.block_m - row0, a.n - q);
      load_tile<T>(right, a.b, b + q * a.b.term_stride, a.block_k - col0, a.n - q);
      __syncthreads();
#pragma unroll
      for (int t = 0; t < kTerms; ++t) {
        Acc column[kEach];
#pragma unroll
        for (int s = 0; s < kEach; ++s) column[s] = right[j + s * kSide][t];
#pragma unroll
        for (int r = 0; r < kEach; ++r) {
          const Acc row = left[i + r * kSide][t];
#pragma unroll
          for (int s = 0; s < kEach; ++s) sum[r][s] += row * column[s];
        }
      }
      __syncthreads();
    }
  }
  T* values = static_cast<T*>(a.sampled) + block * a.block_m * a.block_k;
#pragma unroll
  for (int r = 0; r < kEach; ++r) {
#pragma unroll
    for (int s = 0; s < kEach; ++s) {
      const int64_t row = row0 + i + r * kSide, col = col0 + j + s * kSide;
      if (row < a.block_m && col < a.block_k) {
        values[row * a.block_k + col] = static_cast<T>(sum[r][s]);
      }
    }
  }
}

class SampledSimt final : public Variant {
 public:
  using Variant::Variant;

  Support supports(const Problem& p, const Device&) const override {
    if (p.nnzb > INT32_MAX / (tiles(p.block_m) * tiles(p.block_k))) {
      return Support::no("more than 2^31 - 1 thread blocks in a grid");
    }
    return Support::yes();
  }

  double estimate_us(const Problem& p, const Device& d) const override {
    // A load from shared memory per FMA bounds it. Idle threads count.
    const double used = static_cast<double>(p.block_m * p.block_k) /
                        static_cast<double>(tiles(p.block_m) * tiles(p.block_k) * kTile * kTile);
    return roofline_us(nnz_flops(p) / used, 0.2 * fma_tflops(p, d), compulsory_bytes(p),
                       d.memory_gbps, 3.0);
  }

  Status launch(const Problem& p, const Launch& l) const override {
    const auto operand = [](const void* data, Layout layout, int64_t ld, int64_t batch) {
      const bool along_terms = layout == Layout::kRowMajor;
      return Operand{data, along_terms ? ld : 1, along_terms ? 1 : ld, batch};
    };
    auto a = arguments_of<Arguments>(p, l);
    a.c = operand(l.c, p.c_layout, p.ldc, p.c_batch_stride);
    a.b = operand(l.b, p.b_layout, p.ldb, p.b_batch_stride);
    a.tiles_m = tiles(p.block_m);
    a.tiles_k = tiles(p.block_k);
    const auto blocks = static_cast<unsigned>(p.nnzb * a.tiles_m * a.tiles_k);
    with_type(p.dtype, [&]<typename T>(T*) {
      sampled_simt_kernel<T><<<blocks, kThreads, 0, static_cast<cudaStream_t>(l.stream)>>>(a);
    });
    return to_status(cudaGetLastError(), "sampled_simt");
  }

 private:
  static int64_t tiles(int64_t side) { return ceil_div(side, kTile); }
};

const SampledSimt kSampledSimt{DeviceType::kCuda, "sampled_simt/tile32", Op::kSampled};
const Registration kRegister{kSampledSimt};

}  // namespace
}  // namespace sparse_autotune
