// A lane's share of a small square block's product: all of the block, from shared memory, by 16
// bytes of columns of the rows of B that it meets.
#pragma once

#include "kernels/cuda/product/scalar/at_step.cuh"
#include "kernels/cuda/product/scalar/load_words.cuh"

namespace sparse_autotune {

// `right`: the lane's columns of B's first row; b_k: bytes from one row to the next.
template <typename T, int kBlock, int kColumns>
__device__ __forceinline__ void load_rows_of_b(const char* right, int block_column, int b_k,
                                               T (&x)[kBlock][kColumns]) {
  const char* const from = at_step(right, block_column, kBlock * b_k);
#pragma unroll
  for (int k = 0; k < kBlock; ++k) load_run(at_step(from, k, b_k), x[k]);
}

// kTransposed: the block is stored column by column.
template <bool kTransposed, typename T, int kBlock, int kColumns>
__device__ __forceinline__ void multiply_small_block(const char* block,
                                                     const T (&x)[kBlock][kColumns],
                                                     T (&sum)[kBlock][kColumns]) {
#pragma unroll
  for (int line = 0; line < kBlock; ++line) {
    T left[kBlock];
    load_words<SharedMemory>(block + line * kBlock * static_cast<int>(sizeof(T)), left);
#pragma unroll
    for (int i = 0; i < kBlock; ++i) {
      const int r = kTransposed ? i : line, k = kTransposed ? line : i;
#pragma unroll
      for (int w = 0; w < kColumns; ++w) sum[r][w] += left[i] * x[k][w];
    }
  }
}

}  // namespace sparse_autotune
