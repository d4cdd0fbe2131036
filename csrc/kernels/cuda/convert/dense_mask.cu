// Dense masks made from masks of blocks on the device. Nothing waits for the host.
//
// A thread block owns a row of a pattern: it writes minus infinity everywhere, then zeros for what
// the row's blocks show. Bound by the memory that it writes.
#include "kernels/cuda/convert/dense_mask.h"

#include <cuda_runtime.h>

#include <cmath>

#include "kernels/cuda/device/accumulator.cuh"
#include "kernels/cuda/host/cuda_status.h"
#include "kernels/cuda/host/element_types.h"

namespace sparse_autotune {
namespace {

constexpr int kThreads = 256;

__device__ const int32_t* begins_of_row(const AttentionMask& m, const AttentionShape& s,
                                        int64_t pattern, int64_t row) {
  const int64_t block_rows = (s.rows + m.block_m - 1) / m.block_m;
  return m.crow_indices + pattern * (block_rows + 1) + row / m.block_m;
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    dense_mask_kernel(const __grid_constant__ AttentionForward a, int64_t leading, T* to) {
  const int64_t pattern = blockIdx.x / a.shape.rows, row = blockIdx.x % a.shape.rows;
  T* const mine = to + blockIdx.x * leading;
  union Vector {
    T elements[16 / sizeof(T)];
    uint4 bytes;
    __device__ Vector() : bytes() {}
  } hidden;
  for (T& element : hidden.elements) element = T(-INFINITY);
  auto* const vectors = reinterpret_cast<uint4*>(mine);
  const int64_t count = leading * static_cast<int64_t>(sizeof(T)) / 16;
  for (int64_t i = threadIdx.x; i < count; i += kThreads) vectors[i] = hidden.bytes;
  __syncthreads();
  const int32_t* const begins = begins_of_row(a.mask, a.shape, pattern, row);
  const int64_t limit = a.is_causal ? min(row + 1, a.shape.columns) : a.shape.columns;
  const int64_t width = a.mask.block_n, begin = begins[0], blocks = begins[1] - begin;
  for (int64_t i = threadIdx.x; i < blocks * width; i += kThreads) {
    const int64_t column = a.mask.col_indices[begin + i / width] * width + i % width;
    if (column < limit) mine[column] = T(0);
  }
}

// A warp owns a row of q.
template <typename T, typename Acc>
__global__ void __launch_bounds__(kThreads)
    clear_unseeing_kernel(const __grid_constant__ AttentionForward a, int64_t count) {
  const int64_t number = static_cast<int64_t>(blockIdx.x) * (kThreads / 32) + threadIdx.x / 32;
  if (number >= count) return;
  const int64_t row = number % a.shape.rows, head = number / a.shape.rows % a.shape.heads;
  const int64_t batch = number / a.shape.rows / a.shape.heads;
  const int64_t pattern = batch * a.mask.batch_stride + head * a.mask.head_stride;
  const int32_t* const begins = begins_of_row(a.mask, a.shape, pattern, row);
  const int lane = threadIdx.x % 32;
  for (int first = begins[0]; first < begins[1]; first += 32) {
    const int i = first + lane;
    const bool stored = i < begins[1];
    const bool sees =
        stored &&
        (!a.is_causal || static_cast<int64_t>(a.mask.col_indices[i]) * a.mask.block_n <= row);
    if (__any_sync(~0u, sees)) return;
  }
  T* const out = static_cast<T*>(a.out.data) + batch * a.out.batch_stride +
                 head * a.out.head_stride + row * a.out.row_stride;
  for (int64_t d = lane; d < a.shape.dim; d += 32) out[d] = T(0);
  if (lane == 0) reinterpret_cast<Acc*>(a.lse.data)[number] = -INFINITY;
}

}  // namespace

Status write_dense_mask(const attention::Problem& p, const attention::Launch& l) {
  const AttentionForward a = attention::forward_arguments(p, l);
  return with_type(p.dtype, [&]<typename T>(T*) {
    dense_mask_kernel<T><<<static_cast<unsigned>(p.patterns * p.rows), kThreads, 0,
                           static_cast<cudaStream_t>(l.stream)>>>(a, dense_mask_leading(p.columns),
                                                                  static_cast<T*>(l.prepared));
    return to_status(cudaGetLastError(), "dense_mask");
  });
}

Status clear_unseeing_rows(const attention::Problem& p, const attention::Launch& l) {
  const AttentionForward a = attention::forward_arguments(p, l);
  const int64_t rows = p.batch * p.heads * p.rows;
  return with_type(p.dtype, [&]<typename T>(T*) {
    using Acc = typename Accumulator<T>::Type;
    clear_unseeing_kernel<T, Acc><<<static_cast<unsigned>(ceil_div(rows, kThreads / 32)), kThreads,
                                    0, static_cast<cudaStream_t>(l.stream)>>>(a, rows);
    return to_status(cudaGetLastError(), "clear_unseeing_rows");
  });
}

}  // namespace sparse_autotune
