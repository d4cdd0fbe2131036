// A consumer warp of attention_warps_sm90 that owns 16 rows of q: fragments of them are in
// registers.
//
// The products with v of a piece are issued among those with k of the next one, as long as that one
// is there already and is seen whole: then neither waits for its own.
#pragma once

#include "kernels/cuda/attention/attention_warps_steps_sm90.cuh"
#include "kernels/cuda/attention/hide_columns.cuh"
#include "kernels/cuda/attention/store_rows.cuh"
#include "kernels/cuda/attention/warp_fragments.cuh"
#include "kernels/cuda/attention/warp_softmax.cuh"
#include "kernels/cuda/device/mma.cuh"

namespace sparse_autotune {

template <typename T, typename Tile>
class WarpRowsConsumer {
 public:
  __device__ __forceinline__ WarpRowsConsumer(const WarpRowsArguments& args,
                                              const WarpRowsShared<Tile>& shared, int warp)
      : args_(args), queue_(shared.queue()), warp_(warp), steps_(shared, warp) {}

  __device__ __forceinline__ void run() {
    for (;;) {
      item_ = queue_.pop();
      if (item_.tiles < 0) break;
      load_q();
#pragma unroll
      for (float& x : sum_) x = 0;
      softmax_.begin();
      attend();
      if (item_.part >= 0 &&
          !add_up_parts<1>(args_.parts, item_.part, warp_, Tile::kWarps, &sum_, &softmax_)) {
        continue;
      }
      float inverse[2], lse[2];
      softmax_.finish(inverse, lse);
      store_attention<T>(args_.out, args_.lse, item_.batch, item_.head, own_row(), args_.rows, sum_,
                         inverse, lse);
    }
  }

 private:
  static constexpr int kSlices = Tile::kDim / 16;

  // A piece whose exponentials are known, and whose values are not added up yet.
  struct Held {
    uint32_t k, place;  // of its step
    uint32_t word[4];   // exponentials
  };

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
    const int first_row = item_.row + warp_ * Tile::kWarpRows;
    seen_by_all_ = args_.is_causal ? min(args_.columns, first_row + 1) : args_.columns;
    for (;;) {
      const WarpStep step = steps_.next();
      if (step.is_last) break;
      float score[8] = {}, sum[2];
      steps_.wait(step);
      multiply_by_k(step.k, score);
      if (step.column + Tile::kPiece > seen_by_all_) {
        hide_columns(score, step.column, own_row(), args_.columns, args_.is_causal);
      }
      Held held = {step.k, step.place, {}};
      softmax_.template exponentials<T>(score, args_.scale_log2, held.word, sum);
      if (!__all_sync(~0u, softmax_.are_small(sum))) {
        softmax_.raise_bases(score, args_.scale_log2, sum_);
        softmax_.template exponentials<T>(score, args_.scale_log2, held.word, sum);
      }
      softmax_.add(sum);
      go_on(held);
      multiply_by_v(held);
      steps_.give_back(held.place);
    }
  }

  // Whether this thread finds so; others may find that the copies were over later.
  __device__ __forceinline__ bool is_ready(const WarpStep& step) const {
    return step.is_listed && !step.is_last && step.column + Tile::kPiece <= seen_by_all_ &&
           steps_.is_there(step);
  }

  __device__ __forceinline__ void go_on(Held& held) {
    WarpStep step = steps_.peek();
    bool goes_on = __all_sync(~0u, is_ready(step));
    while (goes_on) {
      steps_.take();
      const WarpStep after = steps_.peek();
      float score[8] = {}, sum[2];
      multiply_both(step.k, held, score);
      steps_.give_back(held.place);
      const bool ready = is_ready(after);
      softmax_.template exponentials<T>(score, args_.scale_log2, held.word, sum);
      const bool small = softmax_.are_small(sum);
      goes_on = __all_sync(~0u, small && ready);
      if (!goes_on && !__all_sync(~0u, small)) {
        softmax_.raise_bases(score, args_.scale_log2, sum_);
        softmax_.template exponentials<T>(score, args_.scale_log2, held.word, sum);
      }
      softmax_.add(sum);
      held.k = step.k;
      held.place = step.place;
      step = after;
    }
  }

  // A value that is found once, and not again wherever it is used.
  static __device__ __forceinline__ uint32_t opaque(uint32_t x) {
    asm volatile("" : "+r"(x));
    return x;
  }

  __device__ __forceinline__ void multiply_slice_by_k(uint32_t from, int i, float (&score)[8]) {
    uint32_t b[4];
    ldmatrix(b, slice_address<Tile::kPanelBytes>(from, i));
    mma<T>(score, q_[i], b);
    mma<T>(score + 4, q_[i], b + 2);
  }
  __device__ __forceinline__ void multiply_slice_by_v(uint32_t from, int i,
                                                      const uint32_t (&word)[4]) {
    uint32_t b[4];
    ldmatrix_transposed(b, slice_address<Tile::kPanelBytes>(from, i));
    mma<T>(sum_ + 8 * i, word, b);
    mma<T>(sum_ + 8 * i + 4, word, b + 2);
  }

  __device__ __forceinline__ void multiply_by_k(uint32_t k, float (&score)[8]) {
#pragma unroll
    for (int i = 0; i < kSlices; ++i) multiply_slice_by_k(k + own_k_, i, score);
  }
  __device__ __forceinline__ void multiply_by_v(const Held& held) {
#pragma unroll
    for (int i = 0; i < kSlices; ++i) multiply_slice_by_v(held.k + own_v_, i, held.word);
  }
  __device__ __forceinline__ void multiply_both(uint32_t k, const Held& held, float (&score)[8]) {
#pragma unroll
    for (int i = 0; i < kSlices; ++i) {
      multiply_slice_by_k(k + own_k_, i, score);
      multiply_slice_by_v(held.k + own_v_, i, held.word);
    }
  }

  const WarpRowsArguments& args_;
  typename Tile::Queue queue_;
  const int warp_;
  // This lane's parts of a piece's address.
  const uint32_t own_k_ = opaque(lines_as_columns());
  const uint32_t own_v_ = opaque(lines_as_rows() + Tile::kTileBytes);
  AttentionItem item_;
  int seen_by_all_;  // columns before it are seen by all of the warp's rows
  StepReader<Tile> steps_;
  WarpSoftmax softmax_;
  uint32_t q_[kSlices][4];
  float sum_[Tile::kDim / 2];
};

}  // namespace sparse_autotune
