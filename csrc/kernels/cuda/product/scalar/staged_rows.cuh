// Small square blocks times few columns, by way of shared memory: the kernel.
//
// A thread block owns neighbouring block rows. Their stored blocks are one run, which is copied to
// shared memory as it lies, column indices and values, in whole lines; a run of more than fits
// comes in chunks. So what waits for memory holds no registers. A group of lanes takes each block
// row: its lanes lie over columns of B, fastest, and over stored blocks, and each keeps sums of all
// rows of a block by 16 bytes of columns. B comes through L1.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/device/activate_sums.cuh"
#include "kernels/cuda/device/cp_async.cuh"
#include "kernels/cuda/device/product_arguments.cuh"
#include "kernels/cuda/product/scalar/load_words.cuh"
#include "kernels/cuda/product/scalar/small_block.cuh"
#include "operators/product/product.h"

namespace sparse_autotune {

struct StagedRowsArguments : ProductArguments {
  int64_t b_batch;  // bytes
  int64_t c_batch_stride, c_row, c_column;
  int n;
  int b_k;         // bytes from one row of B to the next
  int rows;        // block rows
  int rows_each;   // of a thread block
  int chunk;       // blocks at one time
  int columns_at;  // where their column indices lie in shared memory
  // Lanes of a block row over columns and over stored blocks, and 2^16 over that, rounded up.
  int column_lanes, block_lanes;
  unsigned by_column_lanes, by_block_lanes;
  bool stores_words;  // of 16 bytes
};

// Stored blocks of which a lane has its part of B on its way.
template <int kBlock>
constexpr int kStagedAtOnce = kBlock == 1   ? 4
                              : kBlock <= 4 ? 2
                                            : 1;

constexpr int kStagedThreads = 64;  // at most

// Multiplies kSteps stored blocks, a.block_lanes apart, the first of which lies at `values`, its
// column at `columns`.
template <int kSteps, bool kTransposed, typename T, int kBlock, int kColumns>
__device__ __forceinline__ void multiply_staged(const StagedRowsArguments& a, const char* values,
                                                const char* columns, int bytes, const char* right,
                                                T (&sum)[kBlock][kColumns]) {
  constexpr int kBytes = kBlock * kBlock * static_cast<int>(sizeof(T));
  T x[kSteps][kBlock][kColumns];
#pragma unroll
  for (int u = 0; u < kSteps; ++u) {
    const int block_column = *reinterpret_cast<const int*>(columns + u * a.block_lanes * bytes);
    load_rows_of_b(right, block_column, a.b_k, x[u]);
  }
#pragma unroll
  for (int u = 0; u < kSteps; ++u) {
    multiply_small_block<kTransposed>(values + u * a.block_lanes * kBytes, x[u], sum);
  }
}

// Bias and activation of a block row's sums, and C.
template <typename T, int kBlock, int kColumns>
__device__ __forceinline__ void finish_staged(const StagedRowsArguments& a, int block_row,
                                              int column, const T (&sum)[kBlock][kColumns]) {
  T* const c = static_cast<T*>(a.c) + blockIdx.y * a.c_batch_stride + column * a.c_column;
#pragma unroll
  for (int r = 0; r < kBlock; ++r) {
    const int row = block_row * kBlock + r;
    T* const to = c + row * a.c_row;
    alignas(16) T done[kColumns];
#pragma unroll
    for (int w = 0; w < kColumns; ++w) {
      T x = sum[r][w];
      if (a.bias != nullptr) x += static_cast<const T*>(a.bias)[row];
      if (a.activation != Activation::kNone) x = activate_apart(x, a.activation);
      done[w] = x;
    }
    if (a.stores_words) {
      *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(done);
      continue;
    }
#pragma unroll
    for (int w = 0; w < kColumns; ++w) {
      if (column + w < a.n) to[w * a.c_column] = done[w];
    }
  }
}

// kTransposed: blocks are A's, which lie where `positions` says.
template <typename T, int kBlock, bool kTransposed>
__global__ void __launch_bounds__(kStagedThreads, 8)
    staged_rows_kernel(const __grid_constant__ StagedRowsArguments a) {
  constexpr int kItem = static_cast<int>(sizeof(T)), kBytes = kBlock * kBlock * kItem;
  constexpr int kColumns = 16 / kItem, kAtOnce = kStagedAtOnce<kBlock>;
  extern __shared__ __align__(16) char memory[];
  const int bytes = a.wide_indices ? 8 : 4;
  const int first_row = static_cast<int>(blockIdx.x) * a.rows_each;
  const int rows = min(a.rows_each, a.rows - first_row);
  const int begin = index_at(a.crow_indices, first_row, bytes);
  const int end = index_at(a.crow_indices, first_row + rows, bytes);
  int values_at = 0, columns_at = 0;
  const auto copy = [&](int first) {
    const int blocks = min(a.chunk, end - first);
    const char* const columns = at_step(a.col_indices, first, bytes);
    columns_at = a.columns_at + stage_bytes(memory + a.columns_at, columns, blocks * bytes);
    if constexpr (kTransposed) {
      stage_blocks<kBytes>(memory, a.values, a.positions, bytes, first, blocks);
    } else {
      values_at = stage_bytes(memory, at_step(a.values, first, kBytes), blocks * kBytes);
    }
    cp_async_commit();
  };
  if (begin < end) copy(begin);

  const unsigned over_columns = threadIdx.x * a.by_column_lanes >> 16;
  const int column = static_cast<int>(threadIdx.x - over_columns * a.column_lanes) * kColumns;
  const unsigned over_blocks = over_columns * a.by_block_lanes >> 16;
  const int block = static_cast<int>(over_columns - over_blocks * a.block_lanes);
  const int own = static_cast<int>(over_blocks);
  int own_begin = 0, own_end = 0;
  if (own < rows) {
    own_begin = index_at(a.crow_indices, first_row + own, bytes);
    own_end = index_at(a.crow_indices, first_row + own + 1, bytes);
  }
  const char* const right = static_cast<const char*>(a.b) + blockIdx.y * a.b_batch + column * kItem;

  T sum[kBlock][kColumns] = {};
  for (int first = begin; first < end;) {
    cp_async_wait<0>();
    __syncthreads();
    const int last = min(own_end - first, a.chunk);
    int at = max(own_begin - first, 0) + block;
    const auto add = [&]<int kSteps>(std::integral_constant<int, kSteps>) {
      multiply_staged<kSteps, kTransposed, T>(a, memory + values_at + at * kBytes,
                                              memory + columns_at + at * bytes, bytes, right, sum);
      at += kSteps * a.block_lanes;
    };
    while (at + (kAtOnce - 1) * a.block_lanes < last) {
      add(std::integral_constant<int, kAtOnce>{});
    }
#pragma unroll 1
    while (at < last) add(std::integral_constant<int, 1>{});
    first += a.chunk;
    if (first >= end) break;
    __syncthreads();
    copy(first);
  }

  // With several lanes over blocks, all lanes of a block row are of one warp.
  __syncwarp();
  for (int half = a.block_lanes / 2; half > 0; half /= 2) {
#pragma unroll
    for (int r = 0; r < kBlock; ++r) {
#pragma unroll
      for (int w = 0; w < kColumns; ++w) {
        sum[r][w] += __shfl_down_sync(~0u, sum[r][w], half * a.column_lanes);
      }
    }
  }
  if (own >= rows || block != 0) return;
  finish_staged<T>(a, first_row + own, column, sum);
}

}  // namespace sparse_autotune
