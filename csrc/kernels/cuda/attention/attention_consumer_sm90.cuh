// A consumer warpgroup of attention_sm90: 64 rows of q against all tiles of k and v of an item.
//
// Scores of the next tile are multiplied before the exponentials of this one meet v, so that the
// tensor cores work while the warpgroup computes exponentials. For that the exponentials of two
// tiles are in registers at once, in words of their own: a product still reads those before.
#pragma once

#include "kernels/cuda/attention/attention_products_sm90.cuh"
#include "kernels/cuda/attention/store_rows.cuh"
#include "kernels/cuda/attention/warp_softmax.cuh"
#include "kernels/cuda/device/named_barrier.cuh"

namespace sparse_autotune {

template <typename T, typename Tile>
class AttentionConsumer : AttentionProducts<T, Tile> {
 public:
  __device__ __forceinline__ AttentionConsumer(const AttentionArgumentsSm90& args,
                                               const AttentionShared<Tile>& shared, int consumer)
      : AttentionProducts<T, Tile>(args, shared, Tile::kPipelines == 1 ? consumer : 0),
        queue_(shared.queue()) {}

  __device__ __forceinline__ void run() {
    if (Tile::kTakesTurns && user_ == Tile::kUsers - 1) end_turn();
    for (;;) {
      const AttentionItem item = queue_.pop();
      if (item.tiles < 0) break;
      const bool has_q = Tile::kCopiesOut || item.tiles > 0;
      Sums sum = {};
      softmax_.begin();
      if (has_q) this->wait_for_q(q_at_);
      if (item.tiles > 0) {
        attend(item, sum);
      } else {
        give_back_stored();
      }
      store(item, sum);
      if (has_q) q_at_.advance();
    }
    if (Tile::kCopiesOut && threadIdx.x % 32 == 0) tma_store_wait<0>();
  }

 private:
  using Products = AttentionProducts<T, Tile>;
  using Products::args_, Products::shared_, Products::user_;
  using typename Products::Pieces;
  using typename Products::Scores;
  using typename Products::Sums;
  using typename Products::Words;

  __device__ __forceinline__ void attend(const AttentionItem& item, Sums& sum) {
    Words word, next;
    first_tile(item, word);
    int tile = 1;
    if constexpr (Tile::kTakesTurns) {  // the values are waited for first, so one set of words does
#pragma unroll 1
      for (; tile < item.tiles; ++tile) next_tile(item, tile + 1 == item.tiles, sum, word, word);
      last_values(sum, word);
    } else {
#pragma unroll 1
      for (; tile + 1 < item.tiles; tile += 2) {
        next_tile(item, false, sum, word, next);
        next_tile(item, tile + 2 == item.tiles, sum, next, word);
      }
      if (tile < item.tiles) {
        next_tile(item, true, sum, word, next);
        last_values(sum, next);
      } else {
        last_values(sum, word);
      }
    }
  }

  // The stage of q in which the item before left its results, once these have been read.
  __device__ __forceinline__ void give_back_stored() const {
    if (!Tile::kCopiesOut || !has_stored_) return;
    if (threadIdx.x % 32 == 0) tma_store_wait<0>();
    __syncwarp();
    mbarrier_arrive_warp(shared_.q_empty(q_at_.stage ^ 1));
  }

  __device__ __forceinline__ void first_tile(const AttentionItem& item, Words& word) {
    Scores score;
    mbarrier_wait(shared_.full(at_.stage), at_.parity);
    wgmma::fence();
    this->multiply_scores(score, q_at_.stage, at_.stage);
    wgmma::commit();
    give_back_stored();
    const Pieces pieces = this->pieces_at(at_.stage);
    wgmma::wait<0>();
    wgmma::pin(score);
    if (!Tile::kCopiesOut && item.tiles == 1) mbarrier_arrive_warp(shared_.q_empty(q_at_.stage));
    release();
    this->hide(score, pieces, item.row);
    float nothing_yet[4] = {}, part[2];
    softmax_.raise_bases(score, args_.scale_log2, nothing_yet);
    softmax_.template exponentials<T>(score, args_.scale_log2, word, part);
    softmax_.add(part);
  }

  // Scores of the next tile and their exponentials, and v times those of the tile before, `word`.
  __device__ __forceinline__ void next_tile(const AttentionItem& item, bool is_last, Sums& sum,
                                            const Words& word, Words& next) {
    Scores score;
    const RingPlace<Tile::kStages> k = at_;
    mbarrier_wait(shared_.full(k.stage), k.parity);
    if (Tile::kTakesTurns) begin_turn();
    wgmma::fence();
    this->multiply_scores(score, q_at_.stage, k.stage);
    wgmma::commit();
    RingPlace<Tile::kStages> v = k;
    v.advance();
    mbarrier_wait(shared_.full(v.stage), v.parity);
    wgmma::fence();
    this->multiply_values(sum, word, v.stage);
    wgmma::commit();
    if (Tile::kTakesTurns) end_turn();
    const Pieces pieces = this->pieces_at(k.stage);
    wgmma::wait<1>();
    wgmma::pin(score);
    if (!Tile::kCopiesOut && is_last) mbarrier_arrive_warp(shared_.q_empty(q_at_.stage));
    release();
    this->hide(score, pieces, item.row);
    if (Tile::kTakesTurns) {
      wgmma::wait<0>();
      wgmma::pin(sum);
    }
    float part[2];
    softmax_.template exponentials<T>(score, args_.scale_log2, next, part);
    if (!__all_sync(~0u, softmax_.are_small(part))) {
      wgmma::wait<0>();
      wgmma::pin(sum);
      softmax_.raise_bases(score, args_.scale_log2, sum);
      softmax_.template exponentials<T>(score, args_.scale_log2, next, part);
    }
    softmax_.add(part);
    wgmma::wait<0>();
    wgmma::pin(sum);
    release();
  }

  __device__ __forceinline__ void last_values(Sums& sum, const Words& word) {
    mbarrier_wait(shared_.full(at_.stage), at_.parity);
    wgmma::fence();
    this->multiply_values(sum, word, at_.stage);
    wgmma::commit();
    wgmma::wait<0>();
    wgmma::pin(sum);
    release();
  }

  __device__ __forceinline__ void begin_turn() const { barrier_sync<2 * kWarpgroup>(7 + user_); }
  __device__ __forceinline__ void end_turn() const {
    const int next = user_ == Tile::kUsers - 1 ? 0 : user_ + 1;
    barrier_arrive<2 * kWarpgroup>(7 + next);
  }

  __device__ __forceinline__ void release() {
    mbarrier_arrive_warp(shared_.empty(at_.stage));
    at_.advance();
  }

  __device__ __forceinline__ void store(const AttentionItem& item, Sums& sum) {
    if (Tile::kSplits && item.part >= 0) {
      store_part(item, sum);
      return;
    }
    float inverse[2], lse[2];
    softmax_.finish(inverse, lse);
    const int row = this->own_row(item.row);
    if constexpr (Tile::kCopiesOut) {
      copy_out(item, sum, inverse);
      store_lse(args_.lse, item.batch, item.head, row, args_.rows, lse);
      has_stored_ = true;
    } else {
      store_attention<T>(args_.out, args_.lse, item.batch, item.head, row, args_.rows, sum, inverse,
                         lse);
    }
  }

  // Each warp writes the item's results if it is the last: not together, as copy_out() would ask.
  __device__ __forceinline__ void store_part(const AttentionItem& item, Sums& sum) {
    has_stored_ = true;  // nothing by TMA, but the stage of q is given back alike
    const int warp = user_ * 4 + static_cast<int>(threadIdx.x) / 32 % 4;
    if (!add_up_parts<1>(args_.parts, item.part, warp, 4 * Tile::kUsers, &sum, &softmax_)) return;
    float inverse[2], lse[2];
    softmax_.finish(inverse, lse);
    store_attention<T>(args_.out, args_.lse, item.batch, item.head, this->own_row(item.row),
                       args_.rows, sum, inverse, lse);
  }

  // Each warp writes to its own rows of q, which all of them have multiplied by then.
  __device__ __forceinline__ void copy_out(const AttentionItem& item, const Sums& sum,
                                           const float (&factor)[2]) const {
    const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, line = lane % kWarpRows;
    const uint32_t from = shared_.q_of(q_at_.stage, user_) + warp * kWarpRows * kLineBytes;
    warpgroup_sync(3 + static_cast<int>(threadIdx.x) / kWarpgroup);
#pragma unroll
    for (int i = 0; i < Tile::kDim / 16; ++i) {
      uint32_t word[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float* two = sum + 8 * i + 2 * j;
        word[j] = pack<T>(two[0] * factor[j % 2], two[1] * factor[j % 2]);
      }
      const int chunk = (2 * i + lane / 16) % 8 ^ line % 8;
      stmatrix(from + i / 4 * kUserRows * kLineBytes + line * kLineBytes + chunk * 16, word, false);
    }
    tma_store_fence();
    __syncwarp();
    const int row = item.row + user_ * kUserRows + warp * kWarpRows;
    if (lane != 0 || row >= args_.rows) return;
#pragma unroll
    for (int panel = 0; panel < Tile::kPanels; ++panel) {
      tma_store(args_.out_rows, from + panel * kUserRows * kLineBytes, panel * kLineHalves, row,
                item.head, item.batch);
    }
  }

  typename Tile::Queue queue_;
  RingPlace<Tile::kStages> at_;
  RingPlace<Tile::kStagesQ> q_at_;
  bool has_stored_ = false;
  WarpSoftmax softmax_;
};

}  // namespace sparse_autotune
