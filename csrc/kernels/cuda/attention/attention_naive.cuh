// What the readable attention kernels share: a warp's walk along the columns that a row sees, or
// along the rows that see a column, and dot products by single lanes.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <string>

#include "kernels/attention_arguments.h"
#include "kernels/cuda/device/accumulator.cuh"
#include "operators/attention/attention.h"

namespace sparse_autotune {

constexpr int kNaiveWarps = 4;                 // of a thread block
constexpr int kNaiveMaxDim = 256;              // of a head
constexpr int kNaiveEach = kNaiveMaxDim / 32;  // elements of a row that a lane has, at most

inline Support naive_takes(const attention::Problem& p) {
  if (p.dim > kNaiveMaxDim) {
    return Support::no("needs heads of at most " + std::to_string(kNaiveMaxDim) + ", got " +
                       std::to_string(p.dim));
  }
  if (p.heads > 65535 || p.batch > 65535) return Support::no("has more heads than a grid's side");
  if (p.rows == 0 || p.columns == 0 || p.batch == 0) return Support::no("has no element");
  return Support::yes();
}

inline dim3 naive_grid(const attention::Problem& p, int64_t rows, int64_t heads) {
  return {static_cast<unsigned>(ceil_div(rows, kNaiveWarps)), static_cast<unsigned>(heads),
          static_cast<unsigned>(p.batch)};
}

template <typename T>
__device__ __forceinline__ const T* row_of(const AttentionTensor& t, int64_t batch, int64_t head,
                                           int64_t row) {
  return static_cast<const T*>(t.data) + batch * t.batch_stride + head * t.head_stride +
         row * t.row_stride;
}

// Row values have the type that a kernel sums in.
template <typename Acc>
__device__ __forceinline__ Acc& value_of(const AttentionRowValues& t, int64_t batch, int64_t head,
                                         int64_t row) {
  return reinterpret_cast<Acc*>(
      t.data)[batch * t.batch_stride + head * t.head_stride + row * t.row_stride];
}

template <typename Acc, typename A, typename B>
__device__ __forceinline__ Acc dot(const A* a, const B* b, int dim) {
  Acc sum = 0;
  for (int d = 0; d < dim; ++d) sum += static_cast<Acc>(a[d]) * static_cast<Acc>(b[d]);
  return sum;
}

// Calls f(first, count) for all of [begin, end), at most 32 at a time.
template <typename F>
__device__ __forceinline__ void for_each_32(int64_t begin, int64_t end, F&& f) {
  for (int64_t i = begin; i < end; i += 32) f(i, static_cast<int>(min(end - i, int64_t{32})));
}

// Calls f(first column, count) for the columns that `row` sees.
template <typename F>
__device__ __forceinline__ void for_columns(const AttentionMask& mask, const AttentionShape& shape,
                                            bool is_causal, int64_t batch, int64_t head,
                                            int64_t row, F&& f) {
  const int64_t end = is_causal ? min(shape.columns, row + 1) : shape.columns;
  if (mask.crow_indices == nullptr) return for_each_32(0, end, f);
  const int64_t block_rows = (shape.rows + mask.block_m - 1) / mask.block_m;
  const int64_t pattern = batch * mask.batch_stride + head * mask.head_stride;
  const int32_t* crow = mask.crow_indices + pattern * (block_rows + 1) + row / mask.block_m;
  for (int32_t i = crow[0]; i < crow[1]; ++i) {
    const int64_t first = static_cast<int64_t>(mask.col_indices[i]) * mask.block_n;
    for_each_32(first, min(first + mask.block_n, end), f);
  }
}

// Calls f(first row, count) for the rows that see `column`.
template <typename F>
__device__ __forceinline__ void for_rows(const AttentionMask& mask,
                                         const AttentionMaskByColumn& by_column,
                                         const AttentionShape& shape, bool is_causal, int64_t batch,
                                         int64_t head, int64_t column, F&& f) {
  const int64_t begin = is_causal ? column : 0;
  if (mask.crow_indices == nullptr) return for_each_32(begin, shape.rows, f);
  const int64_t block_columns = (shape.columns + mask.block_n - 1) / mask.block_n;
  const int64_t pattern = batch * mask.batch_stride + head * mask.head_stride;
  const int32_t* ccol =
      by_column.ccol_indices + pattern * (block_columns + 1) + column / mask.block_n;
  for (int32_t i = ccol[0]; i < ccol[1]; ++i) {
    const int64_t first = static_cast<int64_t>(by_column.row_indices[i]) * mask.block_m;
    for_each_32(max(first, begin), min(first + mask.block_m, shape.rows), f);
  }
}

// A row as one warp's lanes have it: element d at lane d % 32.
template <typename Acc>
struct LaneRow {
  Acc element[kNaiveEach] = {};

  // += factor * row
  template <typename T>
  __device__ __forceinline__ void add(Acc factor, const T* row, int dim) {
#pragma unroll
    for (int i = 0; i < kNaiveEach; ++i) {
      const int d = i * 32 + static_cast<int>(threadIdx.x % 32);
      if (d < dim) element[i] += factor * static_cast<Acc>(row[d]);
    }
  }
  __device__ __forceinline__ void scale(Acc factor) {
#pragma unroll
    for (int i = 0; i < kNaiveEach; ++i) element[i] *= factor;
  }
  template <typename T>
  __device__ __forceinline__ void store(T* row, int dim) const {
#pragma unroll
    for (int i = 0; i < kNaiveEach; ++i) {
      const int d = i * 32 + static_cast<int>(threadIdx.x % 32);
      if (d < dim) row[d] = static_cast<T>(element[i]);
    }
  }
};

}  // namespace sparse_autotune
