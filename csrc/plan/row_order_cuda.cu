// The row order on the device: one thread block counts rows by length and hands out their places.
#include <cuda_runtime.h>

#include "kernels/cuda/cuda_status.h"
#include "plan/row_order.h"

namespace sparse_autotune {
namespace {

constexpr int kThreads = 1024, kBins = 4096, kBinsEach = kBins / kThreads;

// Rows fall into bins by length, the longest into the first; within a bin nobody is sorted.
struct Bins {
  int64_t longest;

  __device__ int of(int64_t blocks) const {
    const int64_t less = longest - blocks;
    return static_cast<int>(longest < kBins ? less : less * kBins / (longest + 1));
  }
};

template <typename Index>
__global__ void __launch_bounds__(kThreads)
    row_order_kernel(const Index* crow, int block_rows, Bins bins, OrderedRow* order) {
  __shared__ int places[kBins];  // rows in each bin, then the next row's place
  __shared__ int sums[kThreads / 32];
  const int me = static_cast<int>(threadIdx.x), lane = me % 32, warp = me / 32;
  for (int i = me; i < kBins; i += kThreads) places[i] = 0;
  __syncthreads();
  for (int row = me; row < block_rows; row += kThreads) {
    atomicAdd(&places[bins.of(crow[row + 1] - crow[row])], 1);
  }
  __syncthreads();

  // An exclusive sum: over a thread's bins, the threads of a warp, the warps.
  int mine[kBinsEach], total = 0;
  for (int i = 0; i < kBinsEach; ++i) {
    mine[i] = total;
    total += places[me * kBinsEach + i];
  }
  int before = total;
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(~0u, before, step);
    if (lane >= step) before += other;
  }
  if (lane == 31) sums[warp] = before;
  __syncthreads();
  before -= total;
  for (int i = 0; i < warp; ++i) before += sums[i];
  for (int i = 0; i < kBinsEach; ++i) places[me * kBinsEach + i] = before + mine[i];
  __syncthreads();

  for (int row = me; row < block_rows; row += kThreads) {
    const auto begin = static_cast<int>(crow[row]), end = static_cast<int>(crow[row + 1]);
    order[atomicAdd(&places[bins.of(end - begin)], 1)] = {row, begin, end, 0};
  }
}

}  // namespace

Status build_row_order_cuda(const PatternKey& key, const PatternFacts& facts, void* stream_handle,
                            OrderedRow* order) {
  const auto stream = static_cast<cudaStream_t>(stream_handle);
  const Bins bins{facts.longest_row};
  const auto rows = static_cast<int>(key.block_rows);
  if (key.index_type == IndexType::kInt64) {
    row_order_kernel<<<1, kThreads, 0, stream>>>(static_cast<const int64_t*>(key.crow_indices),
                                                 rows, bins, order);
  } else {
    row_order_kernel<<<1, kThreads, 0, stream>>>(static_cast<const int32_t*>(key.crow_indices),
                                                 rows, bins, order);
  }
  return to_status(cudaGetLastError(), "sorting block rows");
}

}  // namespace sparse_autotune
