// Scores of columns that a row may not see become -inf. A thread has those of its rows `row` and
// `row` + 8, four for each 8 columns: two neighbours of each row.
#pragma once

#include <cuda_runtime.h>

#include <cmath>

namespace sparse_autotune {

template <int kCount>
__device__ __forceinline__ void hide_all(float (&score)[kCount]) {
#pragma unroll
  for (float& x : score) x = -INFINITY;
}

// `column` is the first of the scores.
template <int kCount>
__device__ __forceinline__ void hide_columns(float (&score)[kCount], int column, int row,
                                             int columns, bool is_causal) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int end = is_causal ? min(columns, row + 8 * half + 1) : columns;
    const int left = end - column - static_cast<int>(threadIdx.x % 4) * 2;
#pragma unroll
    for (int i = 0; i < kCount / 4; ++i) {
      float* two = score + 4 * i + 2 * half;
      if (8 * i >= left) two[0] = -INFINITY;
      if (8 * i + 1 >= left) two[1] = -INFINITY;
    }
  }
}

}  // namespace sparse_autotune
