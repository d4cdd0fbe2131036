// What surrounds attention_backward_sm90: before it, a pass over the rows of out and dout; after
// it, a pass over the sums of dq.
#pragma once

#include <cmath>

#include "kernels/attention_arguments.h"
#include "kernels/cuda/attention/store_rows.cuh"

namespace sparse_autotune {

constexpr int kRowsThreads = 128;

struct BackwardRows {
  AttentionTensor out, dout, dq;
  AttentionRowValues lse, dlse;
  float *scaled_lse, *delta;  // (batch, heads, row tiles * 64)
  const float* sums;          // of dq, of tiles of 64 rows: see add_dq()
  int rows, row_tiles, heads;
};

__device__ __forceinline__ float2 two_floats(__half2 x) { return __half22float2(x); }
__device__ __forceinline__ float2 two_floats(__nv_bfloat162 x) { return __bfloat1622float2(x); }
template <typename T>
using Pair = std::conditional_t<std::is_same_v<T, __half>, __half2, __nv_bfloat162>;

// A warp a row: delta = dout . out - dlse, and lse as a power of two. A row that sees nothing, and
// rows past the end, get inf, which makes their exponentials zeros.
template <typename T, int kDim>
__global__ void __launch_bounds__(kRowsThreads)
    attention_backward_before(const __grid_constant__ BackwardRows a) {
  const int row = blockIdx.x * (kRowsThreads / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t head = blockIdx.y, batch = blockIdx.z;
  const int64_t to = (batch * a.heads + head) * a.row_tiles * 64 + row;
  float delta = 0, lse = INFINITY;
  if (row < a.rows) {
    const auto pairs = [&](const AttentionTensor& t) {
      return reinterpret_cast<const Pair<T>*>(static_cast<const T*>(t.data) +
                                              batch * t.batch_stride + head * t.head_stride +
                                              row * t.row_stride);
    };
    const Pair<T>*out = pairs(a.out), *dout = pairs(a.dout);
#pragma unroll
    for (int i = 0; i < kDim / 64; ++i) {
      const float2 x = two_floats(out[i * 32 + lane]), y = two_floats(dout[i * 32 + lane]);
      delta += x.x * y.x + x.y * y.y;
    }
    for (int i = 16; i > 0; i /= 2) delta += __shfl_xor_sync(~0u, delta, i);
    const auto value = [&](const AttentionRowValues& t) {
      return t.data[batch * t.batch_stride + head * t.head_stride + row * t.row_stride];
    };
    if (a.dlse.data != nullptr) delta -= value(a.dlse);
    const float own = value(a.lse);
    if (own != -INFINITY) lse = own * static_cast<float>(M_LOG2E);
  }
  if (lane == 0) {
    a.scaled_lse[to] = lse;
    a.delta[to] = delta;
  }
}

// A thread block a tile of 64 rows: its sums to halves.
template <typename T, int kDim>
__global__ void __launch_bounds__(kRowsThreads)
    attention_backward_after(const __grid_constant__ BackwardRows a) {
  const int64_t head = blockIdx.y, batch = blockIdx.z;
  const int row = blockIdx.x * 64 + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
  const int64_t tile = (batch * a.heads + head) * a.row_tiles + blockIdx.x;
  T* to = static_cast<T*>(a.dq.data) + batch * a.dq.batch_stride + head * a.dq.head_stride +
          row * a.dq.row_stride;
  const float one[2] = {1, 1};
#pragma unroll
  for (int panel = 0; panel < kDim / 64; ++panel) {
    const auto* from =
        reinterpret_cast<const float4*>(a.sums + tile * 64 * kDim + panel * 64 * 64) + threadIdx.x;
    float sum[32];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float4 four = from[i * kRowsThreads];
      sum[4 * i] = four.x;
      sum[4 * i + 1] = four.y;
      sum[4 * i + 2] = four.z;
      sum[4 * i + 3] = four.w;
    }
    store_rows<T>(to + panel * 64, a.dq.row_stride, a.rows - row, sum, one);
  }
}

}  // namespace sparse_autotune
