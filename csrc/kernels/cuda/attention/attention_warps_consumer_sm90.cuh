// A consumer warp of attention_warps_sm90: 16 rows of q against the pieces that they see.
//
// The row sums of exponentials tell when a row needs another base: then, and only then, its
// greatest score is looked for.
#pragma once

#include "kernels/cuda/attention/attention_warps_steps_sm90.cuh"
#include "kernels/cuda/attention/hide_columns.cuh"
#include "kernels/cuda/attention/online_softmax.cuh"
#include "kernels/cuda/attention/store_rows.cuh"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/device/pack.cuh"

namespace sparse_autotune {

template <typename T, typename Tile>
class WarpRowsConsumer {
 public:
  __device__ __forceinline__ WarpRowsConsumer(const WarpRowsArguments& args,
                                              const WarpRowsShared<Tile>& shared, int warp)
      : args_(args), shared_(shared), queue_(shared.queue()), warp_(warp), steps_(shared, warp) {}

  __device__ __forceinline__ void run() {
    for (;;) {
      item_ = queue_.pop();
      if (item_.tiles < 0) break;
      load_q();
#pragma unroll
      for (float& x : sum_) x = 0;
      base_[0] = base_[1] = kLowest;
      total_[0] = total_[1] = 0;
      attend();
      store();
    }
  }

 private:
  // What a row's exponentials of a step sum up to, at most, before its base is raised.
  static constexpr float kMostSum = 256;
  static constexpr float kLowest = -1e38f;

  // The first of the thread's two rows.
  __device__ __forceinline__ int own_row() const {
    return item_.row + warp_ * Tile::kWarpRows + static_cast<int>(threadIdx.x) % 32 / 4;
  }

  __device__ __forceinline__ void load_q() {
    const T* from = static_cast<const T*>(args_.q.data) + item_.batch * args_.q.batch_stride +
                    item_.head * args_.q.head_stride + threadIdx.x % 4 * 2;
    const unsigned flip = args_.is_negative ? kSigns : 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = own_row() + 8 * half;
      const T* line = from + row * args_.q.row_stride;
#pragma unroll
      for (int i = 0; i < Tile::kDim / 8; ++i) {
        unsigned word = 0;
        if (row < args_.rows) word = *reinterpret_cast<const unsigned*>(line + 8 * i);
        q_[i / 2][i % 2 * 2 + half] = word ^ flip;
      }
    }
  }

  __device__ __forceinline__ void attend() {
    for (;;) {
      const WarpStep step = steps_.next();
      if (step.pieces == 2) {
        multiply<2>(step);
      } else if (step.pieces == 1) {
        multiply<1>(step);
      }
      steps_.give_back(step);
      if (step.is_last) break;
    }
  }

  // This lane's address in slice i of the head dimension, given that in slice 0.
  static __device__ __forceinline__ uint32_t slice(uint32_t from, int i) {
    return (from ^ i % 4 * 32) + i / 4 * Tile::kPanelBytes;
  }

  template <int kCount>
  __device__ __forceinline__ void multiply(const WarpStep& step) {
    const uint32_t lane = threadIdx.x % 32, swizzle = lane & 7;
    float score[kCount][8] = {};
    const uint32_t own_k =
        (lane / 16 * 8 + lane % 8) * kLineBytes + ((lane / 8 % 2 ^ swizzle) << 4);
#pragma unroll
    for (int i = 0; i < Tile::kDim / 16; ++i) {
#pragma unroll
      for (int u = 0; u < kCount; ++u) {
        uint32_t b[4];
        ldmatrix(b, slice(step.k[u] + own_k, i));
        mma<T>(score[u], q_[i], b);
        mma<T>(score[u] + 4, q_[i], b + 2);
      }
    }
    const int first_row = item_.row + warp_ * Tile::kWarpRows;
    const int seen_by_all = args_.is_causal ? min(args_.columns, first_row + 1) : args_.columns;
#pragma unroll
    for (int u = 0; u < kCount; ++u) {
      const int column = static_cast<int>(step.column[u]);
      if (column + Tile::kPiece <= seen_by_all) continue;
      hide_columns(score[u], column, own_row(), args_.columns, args_.is_causal);
    }
    uint32_t word[kCount][4];
    float sum[2];
    exponentials(score, word, sum);
    if (__any_sync(~0u, sum[0] > kMostSum || sum[1] > kMostSum)) {
      raise_bases(score);
      exponentials(score, word, sum);
    }
    total_[0] += sum[0];
    total_[1] += sum[1];
    const uint32_t own_v = lane % 16 * kLineBytes + ((lane / 16 ^ swizzle) << 4) + Tile::kTileBytes;
#pragma unroll
    for (int i = 0; i < Tile::kDim / 16; ++i) {
#pragma unroll
      for (int u = 0; u < kCount; ++u) {
        uint32_t b[4];
        ldmatrix_transposed(b, slice(step.k[u] + own_v, i));
        mma<T>(sum_ + 8 * i, word[u], b);
        mma<T>(sum_ + 8 * i + 4, word[u], b + 2);
      }
    }
  }

  template <int kCount>
  __device__ __forceinline__ void exponentials(const float (&score)[kCount][8],
                                               uint32_t (&word)[kCount][4], float (&sum)[2]) const {
    sum[0] = sum[1] = 0;
#pragma unroll
    for (int u = 0; u < kCount; ++u) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = i % 2;
        const float low = power_of_two(fmaf(score[u][2 * i], args_.scale_log2, -base_[row]));
        const float high = power_of_two(fmaf(score[u][2 * i + 1], args_.scale_log2, -base_[row]));
        sum[row] += low + high;
        word[u][i] = pack<T>(low, high);
      }
    }
  }

  template <int kCount>
  __device__ __forceinline__ void raise_bases(const float (&score)[kCount][8]) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float top = -INFINITY;
#pragma unroll
      for (int u = 0; u < kCount; ++u) {
#pragma unroll
        for (int i = 2 * row; i < 8; i += 4) {
          top = fmaxf(top, fmaxf(score[u][i], score[u][i + 1]));
        }
      }
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
      const float base = fmaxf(base_[row], top * args_.scale_log2);
      const float shrink = power_of_two(base_[row] - base);
      base_[row] = base;
      total_[row] *= shrink;
#pragma unroll
      for (int i = 2 * row; i < Tile::kDim / 2; i += 4) {
        sum_[i] *= shrink;
        sum_[i + 1] *= shrink;
      }
    }
  }

  __device__ __forceinline__ void store() const {
    float inverse[2], lse[2];
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float total = total_[row];
      total += __shfl_xor_sync(~0u, total, 1);
      total += __shfl_xor_sync(~0u, total, 2);
      inverse[row] = total == 0 ? 0 : 1 / total;
      constexpr float kLn2 = 0.693147180559945309f;
      lse[row] = total == 0 ? -INFINITY : base_[row] * kLn2 + logf(total);
    }
    store_attention<T>(args_.out, args_.lse, item_.batch, item_.head, own_row(), args_.rows, sum_,
                       inverse, lse);
  }

  const WarpRowsArguments& args_;
  const WarpRowsShared<Tile> shared_;
  typename Tile::Queue queue_;
  const int warp_;
  AttentionItem item_;
  StepReader<Tile> steps_;
  uint32_t q_[Tile::kDim / 16][4];
  float sum_[Tile::kDim / 2];
  float base_[2], total_[2];  // of the thread's elements
};

}  // namespace sparse_autotune
