// A warp's sums of 16 rows to memory, without shared memory: a quad's threads exchange words, so
// that each has 16 bytes of a row.
#pragma once

#include <cstdint>

#include "kernels/attention_arguments.h"
#include "kernels/cuda/device/pack.cuh"

namespace sparse_autotune {

// Of four threads' four words, thread t gets word t of each.
__device__ __forceinline__ void transpose_quad(uint32_t (&word)[4]) {
  const bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const uint32_t other = __shfl_xor_sync(~0u, odd ? word[i] : word[i + 1], 1);
    word[i] = odd ? other : word[i];
    word[i + 1] = odd ? word[i + 1] : other;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t other = __shfl_xor_sync(~0u, high ? word[i] : word[i + 2], 2);
    word[i] = high ? other : word[i];
    word[i + 2] = high ? word[i + 2] : other;
  }
}

// The thread's rows `row` and `row` + 8 of `rows`, from `column` on; `factor` is each one's.
template <typename T, int kCount>
__device__ __forceinline__ void store_rows(const AttentionTensor& tensor, int64_t batch,
                                           int64_t head, int row, int rows,
                                           const float (&sum)[kCount], const float (&factor)[2],
                                           int column = 0) {
  const int64_t row_stride = tensor.row_stride;
  T* to = static_cast<T*>(tensor.data) + batch * tensor.batch_stride + head * tensor.head_stride +
          row * row_stride + column;
  const int t = threadIdx.x % 4, rows_left = rows - row;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int i = 0; i < kCount / 16; ++i) {
      uint32_t word[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float* two = sum + 16 * i + 4 * j + 2 * half;
        word[j] = pack<T>(two[0] * factor[half], two[1] * factor[half]);
      }
      transpose_quad(word);
      if (8 * half < rows_left) {
        auto* place = reinterpret_cast<uint4*>(to + 8 * half * row_stride + 32 * i + 8 * t);
        *place = make_uint4(word[0], word[1], word[2], word[3]);
      }
    }
  }
}

// lse of a quad's rows `row` and `row` + 8.
__device__ __forceinline__ void store_lse(const AttentionRowValues& lse, int64_t batch,
                                          int64_t head, int row, int rows, const float (&own)[2]) {
  if (lse.data == nullptr || threadIdx.x % 4 != 0) return;
  float* to = lse.data + batch * lse.batch_stride + head * lse.head_stride + row * lse.row_stride;
  if (row < rows) to[0] = own[0];
  if (row + 8 < rows) to[8 * lse.row_stride] = own[1];
}

// What attention computes of a thread's rows `row` and `row` + 8.
template <typename T, int kCount>
__device__ __forceinline__ void store_attention(
    const AttentionTensor& out, const AttentionRowValues& lse, int64_t batch, int64_t head, int row,
    int rows, const float (&sum)[kCount], const float (&factor)[2], const float (&own_lse)[2]) {
  store_rows<T>(out, batch, head, row, rows, sum, factor);
  store_lse(lse, batch, head, row, rows, own_lse);
}

}  // namespace sparse_autotune
