// Softmax of 16 rows that a warp owns, of which a thread has two: relative to a base that is raised
// only where exponentials become large.
//
// The row sums of exponentials tell when a row needs another base: then, and only then, its
// greatest score is looked for. Floating-point numbers are as precise far from 1 as near it.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>

#include "kernels/cuda/device/pack.cuh"

namespace sparse_autotune {

// Results below the least normal number are 0: they would round to it as halves, too.
__device__ __forceinline__ float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

// What scores of a sign of their own are multiplied by. Of a scale of 0, one that makes zeros of
// all scores but -inf, which stands for columns that a row may not see.
inline float positive_scale(double scale) {
  return std::max(static_cast<float>(std::abs(scale) * M_LOG2E), 1e-30f);
}

constexpr unsigned kSigns = 0x80008000;  // of two halves

struct WarpSoftmax {
  float base[2], total[2];  // of the thread's elements

  __device__ __forceinline__ void begin() {
    base[0] = base[1] = -1e38f;
    total[0] = total[1] = 0;
  }

  // Exponentials as fragments of A, four words for 16 columns, and what they sum up to.
  template <typename T, int kCount>
  __device__ __forceinline__ void exponentials(const float (&score)[kCount], float scale_log2,
                                               uint32_t (&word)[kCount / 2],
                                               float (&sum)[2]) const {
    sum[0] = sum[1] = 0;
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) {
      const int row = i % 2;
      const float low = power_of_two(fmaf(score[2 * i], scale_log2, -base[row]));
      const float high = power_of_two(fmaf(score[2 * i + 1], scale_log2, -base[row]));
      sum[row] += low + high;
      word[i] = pack<T>(low, high);
    }
  }

  static __device__ __forceinline__ bool are_small(const float (&sum)[2]) {
    constexpr float kMost = 256;
    return sum[0] <= kMost && sum[1] <= kMost;
  }

  // By the whole warp. `out` is what was added up so far, relative to the bases before.
  template <int kCount, int kOut>
  __device__ __forceinline__ void raise_bases(const float (&score)[kCount], float scale_log2,
                                              float (&out)[kOut]) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float top = -INFINITY;
#pragma unroll
      for (int i = 2 * row; i < kCount; i += 4) top = fmaxf(top, fmaxf(score[i], score[i + 1]));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
      const float raised = fmaxf(base[row], top * scale_log2);
      const float shrink = power_of_two(base[row] - raised);
      base[row] = raised;
      total[row] *= shrink;
#pragma unroll
      for (int i = 2 * row; i < kOut; i += 4) {
        out[i] *= shrink;
        out[i + 1] *= shrink;
      }
    }
  }

  __device__ __forceinline__ void add(const float (&sum)[2]) {
    total[0] += sum[0];
    total[1] += sum[1];
  }

  // By the whole warp: 1 / sum, 0 for a row without columns; and its logarithm of the sum.
  __device__ __forceinline__ void finish(float (&inverse)[2], float (&lse)[2]) const {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float sum = total[row];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      inverse[row] = sum == 0 ? 0 : 1 / sum;
      constexpr float kLn2 = 0.693147180559945309f;
      lse[row] = sum == 0 ? -INFINITY : base[row] * kLn2 + logf(sum);
    }
  }
};

}  // namespace sparse_autotune
