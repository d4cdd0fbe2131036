// A consumer warp of attention_backward_warps_sm90: 16 rows x against the pieces y that they see.
//
// It multiplies s = x1 y1^T, dp = x2 y2^T, sum1 += ds y1 and, where x are rows of k and v,
// sum2 += p y2. Rows of x1 and x2 are fragments in registers; p and ds go from one product to the
// next there.
#pragma once

#include "kernels/cuda/attention/attention_warps_steps_sm90.cuh"
#include "kernels/cuda/attention/store_rows.cuh"
#include "kernels/cuda/attention/warp_fragments.cuh"
#include "kernels/cuda/attention/warp_softmax.cuh"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/device/pack.cuh"
#include "kernels/cuda/device/shared_memory.cuh"

namespace sparse_autotune {

template <typename T, typename Tile>
class BackwardWarpConsumer {
 public:
  __device__ __forceinline__ BackwardWarpConsumer(const WarpRowsBackwardArguments& args,
                                                  const WarpRowsShared<Tile>& shared, int warp)
      : args_(args), shared_(shared), queue_(shared.queue()), warp_(warp), steps_(shared, warp) {}

  __device__ __forceinline__ void run() {
    for (;;) {
      item_ = queue_.pop();
      if (item_.tiles < 0) break;
      load_rows(args_.x1, x1_);
      load_rows(args_.x2, x2_);
      if constexpr (!kOfColumns) load_values();
#pragma unroll
      for (float& x : sum1_) x = 0;
#pragma unroll
      for (float& x : sum2_) x = 0;
      steps_.for_each([&](const WarpStep& step) { multiply(step); });
      const float scale[2] = {args_.scale, args_.scale}, one[2] = {1, 1};
      store(args_.sum1, sum1_, scale);
      if constexpr (kOfColumns) store(args_.sum2, sum2_, one);
    }
  }

 private:
  static constexpr bool kOfColumns = Tile::kPass == WarpRowsPass::kOfColumns;
  static constexpr int kSlices = Tile::kDim / 16;
  using Fragments = uint32_t[kSlices][4];

  __device__ __forceinline__ int first_row() const { return item_.row + warp_ * Tile::kWarpRows; }
  // The first of the thread's two rows.
  __device__ __forceinline__ int own_row() const {
    return first_row() + static_cast<int>(threadIdx.x) % 32 / 4;
  }

  __device__ __forceinline__ void load_rows(const AttentionTensor& t, Fragments& word) const {
    const T* from = static_cast<const T*>(t.data) + item_.batch * t.batch_stride +
                    item_.head * t.head_stride + threadIdx.x % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = own_row() + 8 * half;
#pragma unroll
      for (int i = 0; i < Tile::kDim / 8; ++i) {
        unsigned two = 0;
        if (row < args_.rows) {
          two = *reinterpret_cast<const unsigned*>(from + row * t.row_stride + 8 * i);
        }
        word[i / 2][i % 2 * 2 + half] = two;
      }
    }
  }

  __device__ __forceinline__ void load_values() {
    const int64_t at = (int64_t{item_.batch} * args_.heads + item_.head) * args_.padded_rows;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = own_row() + 8 * half;
      const bool there = row < args_.padded_rows;
      lse_[half] = there ? args_.lse[at + row] : INFINITY;
      delta_[half] = there ? args_.delta[at + row] : 0;
    }
  }

  __device__ __forceinline__ void multiply(const WarpStep& step) {
    const uint32_t as_columns = step.k + lines_as_columns(), as_rows = step.k + lines_as_rows();
    float p[8] = {}, ds[8] = {};
#pragma unroll
    for (int i = 0; i < kSlices; ++i) {
      uint32_t y1[4], y2[4];
      ldmatrix(y1, slice_address<Tile::kPanelBytes>(as_columns, i));
      ldmatrix(y2, slice_address<Tile::kPanelBytes>(as_columns + Tile::kTileBytes, i));
      mma<T>(p, x1_[i], y1);
      mma<T>(p + 4, x1_[i], y1 + 2);
      mma<T>(ds, x2_[i], y2);
      mma<T>(ds + 4, x2_[i], y2 + 2);
    }
    differences(step, p, ds);
    uint32_t word[4];
    if constexpr (kOfColumns) {
      pack_all<T>(p, word);
      add(sum2_, word, as_rows + Tile::kTileBytes);
    }
    pack_all<T>(ds, word);
    add(sum1_, word, as_rows);
  }

  static __device__ __forceinline__ void add(float (&sum)[Tile::kDim / 2],
                                             const uint32_t (&word)[4], uint32_t from) {
#pragma unroll
    for (int i = 0; i < kSlices; ++i) {
      uint32_t y[4];
      ldmatrix_transposed(y, slice_address<Tile::kPanelBytes>(from, i));
      mma<T>(sum + 8 * i, word, y);
      mma<T>(sum + 8 * i + 4, word, y + 2);
    }
  }

  // Scores become p, dp becomes ds; both are zeros where a row does not see a column.
  __device__ __forceinline__ void differences(const WarpStep& step, float (&p)[8],
                                              float (&ds)[8]) const {
    float lse[4], delta[4];  // of columns 2 t, 2 t + 1 and 8 further
    if constexpr (kOfColumns) {
      const uint32_t from = shared_.values(step.k) + threadIdx.x % 4 * 8;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const auto two_lse = load_shared<float2>(from + i * 32);
        lse[2 * i] = two_lse.x;
        lse[2 * i + 1] = two_lse.y;
        const auto two_delta = load_shared<float2>(from + i * 32 + Tile::kValueBytes / 2);
        delta[2 * i] = two_delta.x;
        delta[2 * i + 1] = two_delta.y;
      }
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int row = i % 4 / 2, column = i / 4 * 2 + i % 2;
      const float own_lse = kOfColumns ? lse[column] : lse_[row];
      const float own_delta = kOfColumns ? delta[column] : delta_[row];
      p[i] = power_of_two(fmaf(p[i], args_.scale_log2, -own_lse));
      ds[i] = p[i] * (ds[i] - own_delta);
    }
    if (is_seen_whole(step.column)) return;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int own = own_row() + i % 4 / 2 * 8;
      const int other = step.column + i / 4 * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + i % 2;
      const bool seen =
          other < args_.columns && (!args_.is_causal || (kOfColumns ? own <= other : other <= own));
      if (!seen) p[i] = ds[i] = 0;
    }
  }

  // By all of the warp's rows.
  __device__ __forceinline__ bool is_seen_whole(int column) const {
    const int last = column + Tile::kPiece - 1;
    if (last >= args_.columns) return false;
    if (!args_.is_causal) return true;
    return kOfColumns ? first_row() + Tile::kWarpRows - 1 <= column : last <= first_row();
  }

  __device__ __forceinline__ void store(const AttentionTensor& to,
                                        const float (&sum)[Tile::kDim / 2],
                                        const float (&factor)[2]) const {
    store_rows<T>(to, item_.batch, item_.head, own_row(), args_.rows, sum, factor);
  }

  const WarpRowsBackwardArguments& args_;
  const WarpRowsShared<Tile> shared_;
  typename Tile::Queue queue_;
  const int warp_;
  AttentionItem item_;
  StepReader<Tile> steps_;
  Fragments x1_, x2_;
  float sum1_[Tile::kDim / 2], sum2_[kOfColumns ? Tile::kDim / 2 : 1];
  float lse_[2], delta_[2];  // of rows of q, where the thread has them
};

}  // namespace sparse_autotune
