// The transposed pattern on the device, in four steps: count the blocks of each column, sum up, let
// each block take a place in its column, sort each column.
#include <cuda_runtime.h>

#include "kernels/cuda/host/cuda_status.h"
#include "plan/transpose.h"

namespace sparse_autotune {
namespace {

constexpr int kThreads = 256, kSumThreads = 1024;

__device__ int add_one(int32_t* counter) { return atomicAdd(counter, 1); }
__device__ int64_t add_one(int64_t* counter) {
  return static_cast<int64_t>(atomicAdd(reinterpret_cast<unsigned long long*>(counter), 1ull));
}

// `ends` is 0 before: ends[c + 1] becomes the blocks of column c.
template <typename Index>
__global__ void count_kernel(const Index* col, int64_t nnzb, Index* ends) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < nnzb) add_one(ends + col[i] + 1);
}

// Counts to ends, by one thread block; `next` becomes each column's begin.
template <typename Index>
__global__ void __launch_bounds__(kSumThreads)
    sum_kernel(Index* ends, int64_t columns, Index* next) {
  __shared__ Index sums[kSumThreads];
  const int me = static_cast<int>(threadIdx.x);
  const int64_t each = (columns + kSumThreads - 1) / kSumThreads;
  const int64_t begin = min(me * each, columns), end = min(begin + each, columns);
  Index total = 0;
  for (int64_t c = begin; c < end; ++c) total += ends[c + 1];
  sums[me] = total;
  __syncthreads();
  for (int step = 1; step < kSumThreads; step *= 2) {
    const Index before = me >= step ? sums[me - step] : 0;
    __syncthreads();
    sums[me] += before;
    __syncthreads();
  }
  Index sum = sums[me] - total;
  for (int64_t c = begin; c < end; ++c) {
    next[c] = sum;
    sum += ends[c + 1];
    ends[c + 1] = sum;
  }
}

template <typename Index>
__global__ void place_kernel(const Index* col, int64_t nnzb, Index* next, Index* unsorted) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < nnzb) unsorted[add_one(next + col[i])] = static_cast<Index>(i);
}

// Which of `count` + 1 ascending ends, the first being 0, `i` lies below.
template <typename Index>
__device__ int64_t segment_of(const Index* ends, int64_t count, int64_t i) {
  int64_t low = 0, high = count;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (ends[middle + 1] <= i) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// A block's place in its column is the number of smaller positions there: the order does not depend
// on who was first in place_kernel.
template <typename Index>
__global__ void sort_kernel(const Index* crow, int64_t block_rows, int64_t block_cols,
                            const Index* ends, int64_t nnzb, const Index* unsorted, Index* col_t,
                            Index* positions) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= nnzb) return;
  const Index mine = unsorted[i];
  const int64_t column = segment_of(ends, block_cols, i);
  const int64_t begin = ends[column], end = ends[column + 1];
  int64_t to = begin;
  for (int64_t other = begin; other < end; ++other) to += unsorted[other] < mine;
  positions[to] = mine;
  col_t[to] = static_cast<Index>(segment_of(crow, block_rows, mine));
}

template <typename Index>
cudaError_t transpose(const PatternKey& key, cudaStream_t stream, const TransposedPattern& out,
                      void* scratch) {
  const auto* crow = static_cast<const Index*>(key.crow_indices);
  const auto* col = static_cast<const Index*>(key.col_indices);
  auto* ends = static_cast<Index*>(out.crow_indices);
  auto* unsorted = static_cast<Index*>(scratch);
  Index* next = unsorted + key.nnzb;
  const auto blocks = static_cast<unsigned>(ceil_div(key.nnzb, kThreads));
  const cudaError_t error =
      cudaMemsetAsync(ends, 0, static_cast<size_t>(key.block_cols + 1) * sizeof(Index), stream);
  if (error != cudaSuccess) return error;
  count_kernel<<<blocks, kThreads, 0, stream>>>(col, key.nnzb, ends);
  sum_kernel<<<1, kSumThreads, 0, stream>>>(ends, key.block_cols, next);
  place_kernel<<<blocks, kThreads, 0, stream>>>(col, key.nnzb, next, unsorted);
  sort_kernel<<<blocks, kThreads, 0, stream>>>(crow, key.block_rows, key.block_cols, ends, key.nnzb,
                                               unsorted, static_cast<Index*>(out.col_indices),
                                               static_cast<Index*>(out.positions));
  return cudaGetLastError();
}

}  // namespace

Status transpose_pattern_cuda(const PatternKey& key, void* stream_handle,
                              const TransposedPattern& out, void* scratch) {
  const auto stream = static_cast<cudaStream_t>(stream_handle);
  const cudaError_t error = key.index_type == IndexType::kInt64
                                ? transpose<int64_t>(key, stream, out, scratch)
                                : transpose<int32_t>(key, stream, out, scratch);
  return to_status(error, "transposing the sparsity pattern");
}

}  // namespace sparse_autotune
