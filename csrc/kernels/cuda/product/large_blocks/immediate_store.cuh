// C's way out of a warpgroup's registers where C is fp32: sums of a tile fill all registers, so
// that they cannot wait there, as DeferredStore's do, while the next tile is multiplied. Each
// thread stores them as they are: the lanes of a warp write whole sectors of 32 bytes.
#pragma once

#include <cstdint>

#include "kernels/activation.h"
#include "kernels/cuda/device/activate_sums.cuh"
#include "kernels/cuda/product/large_blocks/store_sinks.cuh"
#include "operators/product/product.h"

namespace sparse_autotune {

// `kN`: columns of the warpgroup's tile, which has 64 rows. The members are DeferredStore's.
template <int kN>
class ImmediateStore {
 public:
  static constexpr int kBytes = 128 * kLineBytes;

  // `scratch`: kBytes of shared memory.
  __device__ __forceinline__ ImmediateStore(const DirectOutput& out, uint32_t scratch,
                                            bool row_major)
      : out_(out), scratch_(scratch), row_major_(row_major) {}

  __device__ __forceinline__ static int sends_each(int) { return 0; }
  __device__ __forceinline__ void advance() {}
  __device__ __forceinline__ void close() {}

  // Where the next tile goes.
  __device__ __forceinline__ void begin(int row, int column, int batch) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    column_ = column + lane % 4 * 2;
    to_ = static_cast<float*>(out_.c) + batch * out_.batch_stride +
          at(row + warp * 16 + lane / 4, column_);
  }

  // A tile whose multiplications are done. `low` and `high`: the bias of this lane's two rows.
  __device__ __forceinline__ void finish(float (&sum)[kN / 2], float low, float high,
                                         Activation activation) {
    finish_sums<kBytes>(sum, low, high, activation, scratch_, [] {});
#pragma unroll
    for (int i = 0; i < kN / 8; ++i) {
      store(i, sum[4 * i], sum[4 * i + 1], 0);
      store(i, sum[4 * i + 2], sum[4 * i + 3], 8);
    }
  }

  // The same for a tile whose block row is empty.
  __device__ __forceinline__ void finish_empty(float low, float high, Activation activation) {
    low = activate(low, activation);
    high = activate(high, activation);
#pragma unroll 4
    for (int i = 0; i < kN / 8; ++i) {
      store(i, low, low, 0);
      store(i, high, high, 8);
    }
  }

 private:
  __device__ __forceinline__ int64_t at(int row, int column) const {
    return row_major_ ? row * out_.ldc + column : column * out_.ldc + row;
  }

  // Columns 8 i and 8 i + 1 from the lane's own first on, of the row `down` below its own.
  __device__ __forceinline__ void store(int i, float x, float y, int down) const {
    const int left = out_.n - column_ - 8 * i;
    float* to = to_ + at(down, 8 * i);
    if (row_major_ && left > 1) {
      *reinterpret_cast<float2*>(to) = {x, y};
    } else {
      if (left > 0) to[0] = x;
      if (left > 1) to[at(0, 1)] = y;
    }
  }

  const DirectOutput& out_;
  const uint32_t scratch_;
  const bool row_major_;
  float* to_ = nullptr;
  int column_ = 0;
};

}  // namespace sparse_autotune
