// The readable CUDA kernel: every block size, every dtype, any alignment. Read this one first.
//
// One thread block owns 4 rows of one block row and 64 columns of C, a thread one element. It walks
// the block row's stored blocks; all threads of a warp share the element of A (a broadcast from
// cache) and read neighbouring elements of B. Data path: global memory -> registers. Accumulates in
// fp32 (fp64 for fp64). Requires: nothing. Wins: small problems.
#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/activation.h"
#include "kernels/cuda/device/accumulator.cuh"
#include "kernels/cuda/device/load_index.cuh"
#include "kernels/cuda/device/product_arguments.cuh"
#include "kernels/cuda/host/arguments_of.h"
#include "kernels/cuda/host/cuda_status.h"
#include "kernels/cuda/host/element_types.h"
#include "operators/product/product.h"
#include "tile_roofline.h"

namespace sparse_autotune {
namespace {

constexpr int kColumns = 64, kRows = 4;  // of C per thread block

struct Arguments : ProductArguments {
  int64_t block_rows, strips, n, block_m, block_k, batch;
  int64_t a_row, a_column;  // in a block of values, elements from one row or column to the next
  // Elements from one row to the next and from one column to the next.
  int64_t b_row, b_column, b_batch_stride, c_row, c_column, c_batch_stride;
};

template <typename T>
__global__ void __launch_bounds__(kColumns* kRows, 4) simt_kernel(const Arguments a) {
  using Acc = typename Accumulator<T>::Type;
  const int64_t block_row = blockIdx.x / a.strips;
  const int64_t row = (blockIdx.x % a.strips) * kRows + threadIdx.y;  // within it
  if (row >= a.block_m) return;
  const auto index = [&](const void* of, int64_t i) { return load_index(of, i, a.wide_indices); };
  const int64_t begin = index(a.crow_indices, block_row);
  const int64_t end = index(a.crow_indices, block_row + 1);
  const int64_t i = block_row * a.block_m + row;

  for (int64_t batch = blockIdx.z; batch < a.batch; batch += gridDim.z) {
    const T* b = static_cast<const T*>(a.b) + batch * a.b_batch_stride;
    T* c = static_cast<T*>(a.c) + batch * a.c_batch_stride;
    for (int64_t j = blockIdx.y * kColumns + threadIdx.x; j < a.n; j += gridDim.y * kColumns) {
      Acc sum = 0;
      for (int64_t p = begin; p < end; ++p) {
        const int64_t position = a.positions == nullptr ? p : index(a.positions, p);
        const T* left =
            static_cast<const T*>(a.values) + position * a.block_m * a.block_k + row * a.a_row;
        const T* right = b + index(a.col_indices, p) * a.block_k * a.b_row + j * a.b_column;
        for (int64_t kk = 0; kk < a.block_k; ++kk, left += a.a_column, right += a.b_row) {
          sum += static_cast<Acc>(*left) * static_cast<Acc>(*right);
        }
      }
      if (a.bias != nullptr) sum += static_cast<Acc>(static_cast<const T*>(a.bias)[i]);
      c[i * a.c_row + j * a.c_column] = static_cast<T>(activate(sum, a.activation));
    }
  }
}

class Simt final : public Variant {
 public:
  using Variant::Variant;

  Support supports(const Problem& p, const Device&) const override {
    if (block_rows(p) * strips(p) > INT32_MAX) {
      return Support::no("more than 2^31 - 1 thread blocks in a grid");
    }
    return Support::yes();
  }

  double estimate_us(const Problem& p, const Device& d) const override {
    TileWork work = tiles_of_rows(p, kRows, kColumns, block_rows(p), p.longest_row);
    // Down a column-major B each thread of a warp fetches a sector of its own.
    constexpr double kSector = 32;
    const double each = p.b_layout == Layout::kColMajor && p.n > 1 ? kSector : size_of(p.dtype);
    work.fetched = work.flops / (2 * kRows) * each;
    return tiled_us(work, {.start_us = 9, .compute = 0.075, .l2 = 0.115, .alone = 1.5},
                    fma_tflops(p, d), p, d);
  }

  Status launch(const Problem& p, const Launch& l) const override {
    const bool b_rows = p.b_layout == Layout::kRowMajor;
    auto a = arguments_of<Arguments>(p, l);
    a.strips = strips(p);
    a.a_row = row_stride_in_block(p);
    a.a_column = k_stride_in_block(p);
    a.b_row = b_rows ? p.ldb : 1;
    a.b_column = b_rows ? 1 : p.ldb;
    const dim3 grid(static_cast<unsigned>(a.block_rows * a.strips),
                    static_cast<unsigned>(std::min<int64_t>(ceil_div(p.n, kColumns), 65535)),
                    static_cast<unsigned>(std::min<int64_t>(p.batch, 65535)));
    with_type(p.dtype, [&]<typename T>(T*) {
      const dim3 threads(kColumns, kRows);
      simt_kernel<T><<<grid, threads, 0, static_cast<cudaStream_t>(l.stream)>>>(a);
    });
    return to_status(cudaGetLastError(), "simt");
  }

 private:
  static int64_t strips(const Problem& p) { return ceil_div(p.block_m, kRows); }
};

const Simt kSimt{DeviceType::kCuda, "simt/rows4"};
const Registration kRegister{kSimt};

}  // namespace
}  // namespace sparse_autotune
