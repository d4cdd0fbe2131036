// A consumer warpgroup of attention_sm90: 64 rows of q against all tiles of k and v of an item.
//
// Scores of the next tile are multiplied before the exponentials of this one meet v, so that the
// tensor cores work while the warpgroup computes exponentials.
#pragma once

#include "kernels/cuda/attention/attention_products_sm90.cuh"
#include "kernels/cuda/attention/store_rows.cuh"

namespace sparse_autotune {

template <typename T, typename Tile>
class AttentionConsumer : AttentionProducts<T, Tile> {
 public:
  __device__ __forceinline__ AttentionConsumer(const AttentionArgumentsSm90& args,
                                               const AttentionShared<Tile>& shared, int consumer)
      : AttentionProducts<T, Tile>(args, shared, Tile::kUsers == 2 ? consumer : 0),
        queue_(shared.queue()) {}

  __device__ __forceinline__ void run() {
    for (;;) {
      const AttentionItem item = queue_.pop();
      if (item.tiles < 0) break;
      OnlineSoftmax softmax{args_.scale_log2};
      Sums sum = {};
      if (item.tiles > 0) attend(item, softmax, sum);
      store(item, sum, softmax);
    }
  }

 private:
  using Products = AttentionProducts<T, Tile>;
  using Products::args_, Products::shared_;
  using typename Products::Pieces;
  using typename Products::Scores;
  using typename Products::Sums;
  using typename Products::Words;

  __device__ __forceinline__ void attend(const AttentionItem& item, OnlineSoftmax& softmax,
                                         Sums& sum) {
    Words word;
    this->wait_for_q(q_at_);
    first_tile(item, softmax, word);
#pragma unroll 1
    for (int tile = 1; tile < item.tiles; ++tile) {
      next_tile(item, tile == item.tiles - 1, softmax, sum, word);
    }
    q_at_.advance();
    last_values(sum, word);
  }

  __device__ __forceinline__ void first_tile(const AttentionItem& item, OnlineSoftmax& softmax,
                                             Words& word) {
    Scores score;
    mbarrier_wait(shared_.full(at_.stage), at_.parity);
    wgmma::fence();
    this->multiply_scores(score, q_at_.stage, at_.stage);
    wgmma::commit();
    const Pieces pieces = this->pieces_at(at_.stage);
    wgmma::wait<0>();
    wgmma::pin(score);
    if (item.tiles == 1) mbarrier_arrive_warp(shared_.q_empty(q_at_.stage));
    release();
    this->hide(score, pieces, item.row);
    float shrink[2];
    softmax.add(score, shrink);
    wgmma::round_sums<T>(word, score);
  }

  // Scores of the next tile, and v times the exponentials of the one before.
  __device__ __forceinline__ void next_tile(const AttentionItem& item, bool is_last,
                                            OnlineSoftmax& softmax, Sums& sum, Words& word) {
    Scores score;
    const RingPlace<Tile::kStages> k = at_;
    mbarrier_wait(shared_.full(k.stage), k.parity);
    wgmma::fence();
    this->multiply_scores(score, q_at_.stage, k.stage);
    wgmma::commit();
    RingPlace<Tile::kStages> v = k;
    v.advance();
    mbarrier_wait(shared_.full(v.stage), v.parity);
    wgmma::fence();
    this->multiply_values(sum, word, v.stage);
    wgmma::commit();
    const Pieces pieces = this->pieces_at(k.stage);
    wgmma::wait<1>();
    wgmma::pin(score);
    if (is_last) mbarrier_arrive_warp(shared_.q_empty(q_at_.stage));
    release();
    this->hide(score, pieces, item.row);
    float shrink[2];
    softmax.add(score, shrink);
    wgmma::wait<0>();
    wgmma::pin(sum);
    release();
#pragma unroll
    for (int i = 0; i < Tile::kDim / 2; ++i) sum[i] *= shrink[i / 2 % 2];
    wgmma::round_sums<T>(word, score);
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

  __device__ __forceinline__ void release() {
    mbarrier_arrive_warp(shared_.empty(at_.stage));
    at_.advance();
  }

  __device__ __forceinline__ void store(const AttentionItem& item, const Sums& sum,
                                        OnlineSoftmax& softmax) const {
    float inverse[2], lse[2];
    softmax.finish(inverse, lse);
    store_attention<T>(args_.out, args_.lse, item.batch, item.head, this->own_row(item.row),
                       args_.rows, sum, inverse, lse);
  }

  typename Tile::Queue queue_;
  RingPlace<Tile::kStages> at_;
  RingPlace<Tile::kStagesQ> q_at_;
};

}  // namespace sparse_autotune
