// C's ways out of a warpgroup's registers. Halves leave while the next tile is being multiplied:
// finish() applies bias and activation to a tile's sums and packs them into half as many registers;
// advance(), called between the next tile's multiplications, sends 64 columns of them at a time:
// stmatrix to a buffer of the warpgroup's two, from which a sink takes 64 x 64 elements to C.
#pragma once

#include <cstdint>

#include "kernels/activation.h"
#include "kernels/cuda/device/activate_sums.cuh"
#include "kernels/cuda/device/pack.cuh"
#include "kernels/cuda/device/tma.cuh"
#include "kernels/cuda/device/warpgroup.cuh"
#include "kernels/cuda/product/large_blocks/store_sinks.cuh"
#include "operators/product/product.h"

namespace sparse_autotune {

// `kN`: columns of the warpgroup's tile, which has 64 rows.
template <typename T, int kN, typename Sink = TmaSink>
class DeferredStore {
 public:
  static constexpr int kBufferBytes = 64 * kLineBytes, kBytes = 2 * kBufferBytes;

  // `buffers`: kBytes of shared memory, aligned to 1024; `n`: columns of C.
  __device__ __forceinline__ DeferredStore(const Sink& sink, uint32_t buffers, int barrier, int n,
                                           bool row_major)
      : sink_(sink),
        first_(buffers),
        buffer_(buffers),
        barrier_(barrier),
        n_(n),
        row_major_(row_major) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    // Rows: matrices 0 and 1 are the upper and lower half of 8 columns, 2 and 3 of the next 8.
    const int line = row_major ? warp * 16 + lane % 16 : lane / 16 * 8 + lane % 8;
    const int chunk = row_major ? lane / 16 : warp * 2 + lane / 8 % 2;
    offset_ = line * kLineBytes + ((chunk ^ (lane % 8)) << 4);
  }

  // How many calls of advance() each of `steps` steps must make for all to be sent in them.
  __device__ __forceinline__ static int sends_each(int steps) {
    return steps >= kParts ? 1 : (kParts + steps - 1) / max(steps, 1);
  }

  // Sends the next 64 columns, if any are left.
  __device__ __forceinline__ void advance() {
    const int now = next_;
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      if (i == now) send(i);
    }
  }

  __device__ __forceinline__ void flush() {
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      if (i >= next_) send(i);
    }
  }

  // Where the next tile goes, once the one before has been sent.
  __device__ __forceinline__ void begin(int row, int column, int batch) {
    flush();
    row_ = row;
    column_ = column;
    batch_ = batch;
    next_ = 0;
  }

  // Takes over a tile whose multiplications are done. `low` and `high` are the bias of this lane's
  // two rows.
  __device__ __forceinline__ void finish(float (&sum)[kN / 2], float low, float high,
                                         Activation activation) {
    finish_sums<kBytes>(sum, low, high, activation, first_, [this] {
      sink_.drain();
      warpgroup_sync(barrier_);
    });
#pragma unroll
    for (int i = 0; i < kN / 4; ++i) word_[i] = pack<T>(sum[2 * i], sum[2 * i + 1]);
  }

  // The same for a tile whose block row is empty.
  __device__ __forceinline__ void finish_empty(float low, float high, Activation activation) {
    low = activate(low, activation);
    high = activate(high, activation);
#pragma unroll
    for (int i = 0; i < kN / 4; ++i)
      word_[i] = i % 2 == 0 ? pack<T>(low, low) : pack<T>(high, high);
  }

  // Before the thread block ends.
  __device__ __forceinline__ void close() {
    flush();
    sink_.drain();
  }

 private:
  static constexpr int kParts = kN / 64;

  __device__ __forceinline__ void send(int part) {
    next_ = part + 1;
    if (column_ + part * 64 >= n_) return;
    sink_.reuse();
    warpgroup_sync(barrier_);
    const uint32_t to = buffer_ + offset_;
    if (row_major_) {
#pragma unroll
      for (int i = 0; i < 4; ++i) stmatrix(to ^ i * 32, word_ + part * 16 + i * 4, false);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        stmatrix(to + i * 16 * kLineBytes, word_ + part * 16 + i * 4, true);
      }
    }
    sink_.publish();
    warpgroup_sync(barrier_);
    sink_.send(buffer_, row_, column_ + part * 64, batch_, row_major_);
    buffer_ = buffer_ == first_ ? first_ + kBufferBytes : first_;
  }

  const Sink sink_;
  const uint32_t first_;
  uint32_t buffer_, offset_;
  const int barrier_, n_;
  const bool row_major_;
  int next_ = kParts, row_ = 0, column_ = 0, batch_ = 0;
  uint32_t word_[kN / 4];
};

// Of an fp32 C: sums of a tile fill all registers, so that they cannot wait there. Each thread
// stores them as they are: the lanes of a warp write whole sectors of 32 bytes.

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
