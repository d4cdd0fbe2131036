// What surrounds kernels of the backward pass: the mask by column; before them, a pass over the
// rows of out and dout; after attention_backward_sm90, a pass over its sums of dq.
#pragma once

#include <cmath>
#include <utility>

#include "kernels/attention_arguments.h"
#include "kernels/cuda/attention/store_rows.cuh"
#include "kernels/cuda/host/cuda_status.h"

namespace sparse_autotune {

// k and v as if they were q: a pass that owns their rows walks along rows of q.
inline AttentionMask by_column(const AttentionBackward& a) {
  AttentionMask mask = a.mask;
  mask.crow_indices = a.by_column.ccol_indices;
  mask.col_indices = a.by_column.row_indices;
  std::swap(mask.block_m, mask.block_n);
  return mask;
}
inline AttentionShape by_column(AttentionShape shape) {
  std::swap(shape.rows, shape.columns);
  return shape;
}

constexpr int kRowsThreads = 128;

struct BackwardRows {
  AttentionTensor out, dout, dq;
  AttentionRowValues lse, dlse;
  float *scaled_lse, *delta;  // (batch, heads, row tiles * 64)
  float* sums;                // what follows them; of dq, of tiles of 16 rows: see add_dq()
  int rows, row_tiles, heads;
  float scale;             // of dq
  int heads_cleared = 0;   // whose sums are cleared; counted in all batch entries
  int* cleared = nullptr;  // counters of attention_backward_sm90, one a head
};

// Where attention_backward_sm90 wants a row's lse and delta among those of its head: a thread that
// has columns of wgmma's sums needs rows 2 t, 2 t + 1, 2 t + 8 and 2 t + 9 of each 16, and finds
// them side by side.
__device__ __forceinline__ int place_of_row(int row) {
  return row / 16 * 16 + row % 8 / 2 * 4 + row % 16 / 8 * 2 + row % 2;
}

// The dot product of two pieces of 8 halves.
template <typename T>
__device__ __forceinline__ float dot_of_halves(const uint4& x, const uint4& y) {
  using Pair = std::conditional_t<std::is_same_v<T, __half>, __half2, __nv_bfloat162>;
  const auto floats = [](const Pair& pair) {
    if constexpr (std::is_same_v<T, __half>) return __half22float2(pair);
    if constexpr (!std::is_same_v<T, __half>) return __bfloat1622float2(pair);
  };
  const auto *left = reinterpret_cast<const Pair*>(&x), *right = reinterpret_cast<const Pair*>(&y);
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 a = floats(left[i]), b = floats(right[i]);
    sum = fmaf(a.x, b.x, fmaf(a.y, b.y, sum));
  }
  return sum;
}

constexpr int kRowsOfWarp = 8, kRowsOfBlock = kRowsOfWarp * kRowsThreads / 32;

// delta = dout . out - dlse, and lse as a power of two. A row that sees nothing, and rows past the
// end, get inf, which makes their exponentials zeros. `kSums`: for a kernel that adds up dq; in the
// first heads sums of as many rows as a warp has are cleared, whatever their order.
template <typename T, int kDim, bool kSums>
__global__ void __launch_bounds__(kRowsThreads)
    attention_backward_before(const __grid_constant__ BackwardRows a) {
  constexpr int kLanes = kDim / 8, kAtOnce = 32 / kLanes;  // of a row; rows
  const int lane = threadIdx.x % 32, part = lane % kLanes * 8;
  const int first = blockIdx.x * kRowsOfBlock + threadIdx.x / 32 * kRowsOfWarp;
  const int64_t head = blockIdx.y, batch = blockIdx.z;
  const int64_t begin = (batch * a.heads + head) * a.row_tiles * 64;
  uint4 out[kRowsOfWarp / kAtOnce], dout[kRowsOfWarp / kAtOnce];
#pragma unroll
  for (int i = 0; i < kRowsOfWarp / kAtOnce; ++i) {
    const int row = first + i * kAtOnce + lane / kLanes;
    const auto halves = [&](const AttentionTensor& t) {
      return *reinterpret_cast<const uint4*>(static_cast<const T*>(t.data) +
                                             batch * t.batch_stride + head * t.head_stride +
                                             row * t.row_stride + part);
    };
    out[i] = row < a.rows ? halves(a.out) : uint4{};
    dout[i] = row < a.rows ? halves(a.dout) : uint4{};
  }
  if (kSums && blockIdx.x == 0 && threadIdx.x == 0) a.cleared[batch * a.heads + head] = 0;
  if (kSums && batch * a.heads + head < a.heads_cleared) {
    auto* sums = reinterpret_cast<float4*>(a.sums + (begin + first) * kDim);
#pragma unroll
    for (int i = 0; i < kRowsOfWarp * kDim / 4; i += 32) sums[i + lane] = {};
  }
#pragma unroll
  for (int i = 0; i < kRowsOfWarp / kAtOnce; ++i) {
    const int row = first + i * kAtOnce + lane / kLanes;
    float delta = dot_of_halves<T>(out[i], dout[i]), lse = INFINITY;
#pragma unroll
    for (int j = kLanes / 2; j > 0; j /= 2) delta += __shfl_xor_sync(~0u, delta, j);
    if (lane % kLanes != 0) continue;
    if (row < a.rows) {
      const auto value = [&](const AttentionRowValues& t) {
        return t.data[batch * t.batch_stride + head * t.head_stride + row * t.row_stride];
      };
      if (a.dlse.data != nullptr) delta -= value(a.dlse);
      const float own = value(a.lse);
      if (own != -INFINITY) lse = own * static_cast<float>(M_LOG2E);
    }
    const int64_t to = begin + (kSums ? place_of_row(row) : row);
    a.scaled_lse[to] = lse;
    a.delta[to] = delta;
  }
}

// Bytes of lse and delta of so many tiles of 64 rows of each head, with which workspaces begin.
inline int64_t row_values_bytes(const AttentionShape& s, int64_t row_tiles) {
  return 2 * 4 * s.batch * s.heads * row_tiles * 64;
}
inline BackwardRows backward_rows(const AttentionBackward& a, int64_t row_tiles) {
  const AttentionShape& s = a.shape;
  const int64_t values = s.batch * s.heads * row_tiles * 64;
  auto* lse = static_cast<float*>(a.workspace);
  return {a.out,
          a.dout,
          a.dq,
          a.lse,
          a.dlse,
          lse,
          lse + values,
          lse + 2 * values,
          static_cast<int>(s.rows),
          static_cast<int>(row_tiles),
          static_cast<int>(s.heads),
          static_cast<float>(a.scale)};
}

inline dim3 rows_grid(const AttentionShape& s, const BackwardRows& rows, int rows_each) {
  return {static_cast<unsigned>(rows.row_tiles * 64 / rows_each), static_cast<unsigned>(s.heads),
          static_cast<unsigned>(s.batch)};
}

template <typename T, int kDim, bool kSums>
Status launch_before(const BackwardRows& rows, const AttentionBackward& a, std::string_view name) {
  attention_backward_before<T, kDim, kSums><<<rows_grid(a.shape, rows, kRowsOfBlock), kRowsThreads,
                                              0, static_cast<cudaStream_t>(a.stream)>>>(rows);
  return to_status(cudaGetLastError(), name);
}

// A thread block a tile of 64 rows: its sums to halves.
template <typename T, int kDim>
__global__ void __launch_bounds__(kRowsThreads)
    attention_backward_after(const __grid_constant__ BackwardRows a) {
  const int64_t head = blockIdx.y, batch = blockIdx.z;
  const int row = blockIdx.x * 64 + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
  const int64_t tile = ((batch * a.heads + head) * a.row_tiles + blockIdx.x) * 4 + threadIdx.x / 32;
  const float scale[2] = {a.scale, a.scale};
#pragma unroll
  for (int panel = 0; panel < kDim / 64; ++panel) {
    const auto* from =
        reinterpret_cast<const float4*>(a.sums + tile * 16 * kDim + panel * 16 * 64) +
        threadIdx.x % 32;
    float sum[32];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float4 four = from[i * 32];
      sum[4 * i] = four.x;
      sum[4 * i + 1] = four.y;
      sum[4 * i + 2] = four.z;
      sum[4 * i + 3] = four.w;
    }
    store_rows<T>(a.dq, batch, head, row, a.rows, sum, scale, panel * 64);
  }
}

template <typename T, int kDim>
Status launch_after(const BackwardRows& rows, const AttentionBackward& a, std::string_view name) {
  attention_backward_after<T, kDim>
      <<<rows_grid(a.shape, rows, 64), kRowsThreads, 0, static_cast<cudaStream_t>(a.stream)>>>(
          rows);
  return to_status(cudaGetLastError(), name);
}

}  // namespace sparse_autotune
