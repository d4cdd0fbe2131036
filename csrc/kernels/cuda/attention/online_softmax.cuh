// Softmax over a row that comes in tiles: the running maximum and sum of the two rows that a thread
// of a warpgroup shares with the three others of its quad.
//
// Exponentials are powers of two: `scale` is the caller's times log2(e), so that an element costs
// one fma and one ex2.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>

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

struct OnlineSoftmax {
  float scale;
  float top[2] = {-INFINITY, -INFINITY};  // the greatest score so far, unscaled
  float sum[2] = {0, 0};                  // of this thread's elements

  // Scores become exponentials; what was summed before is to be multiplied by `shrink`.
  template <int kCount>
  __device__ __forceinline__ void add(float (&score)[kCount], float (&shrink)[2]) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float most = top[row];
#pragma unroll
      for (int i = 2 * row; i < kCount; i += 4) most = fmaxf(most, fmaxf(score[i], score[i + 1]));
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
      // A row that has seen nothing yet: -inf less -inf would be NaN.
      const float base = most == -INFINITY ? 0 : most * scale;
      shrink[row] = power_of_two(fmaf(top[row], scale, -base));
      top[row] = most;
      float total = 0;
#pragma unroll
      for (int i = 2 * row; i < kCount; i += 4) {
        score[i] = power_of_two(fmaf(score[i], scale, -base));
        score[i + 1] = power_of_two(fmaf(score[i + 1], scale, -base));
        total += score[i] + score[i + 1];
      }
      sum[row] = fmaf(sum[row], shrink[row], total);
    }
  }

  // After the last tile: 1 / sum, 0 for a row without columns; and its logarithm of the sum.
  __device__ __forceinline__ void finish(float (&inverse)[2], float (&lse)[2]) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float total = sum[row];
      total += __shfl_xor_sync(~0u, total, 1);
      total += __shfl_xor_sync(~0u, total, 2);
      inverse[row] = total == 0 ? 0 : 1 / total;
      constexpr float kLn2 = 0.693147180559945309f;
      lse[row] = total == 0 ? -INFINITY : top[row] * (scale * kLn2) + logf(total);
    }
  }
};

}  // namespace sparse_autotune
