// A consumer warpgroup of attention_backward_sm90: 64 rows of k and v against all steps of an item.
//
// With n the consumer's columns and m the step's rows, it multiplies
//   s[n, m] = k q^T,  dp[n, m] = v dout^T,  dv[n, :] += p dout,  dk[n, :] += ds q,
//   dq[m, :] = ds^T k
// p and ds stay in registers as operands of dv and dk; dq needs ds with the rows along m, and,
// where two consumers share an item, that of both, so it goes through shared memory. Such a pair
// multiplies a step's dq in the next step, when both have long written their ds: neither waits for
// the other in each step. A step's dk is multiplied last, and, in steps of 64 rows, still under way
// when the next one begins.
#pragma once

#include "kernels/cuda/attention/attention_backward_products_sm90.cuh"
#include "kernels/cuda/attention/store_rows.cuh"
#include "kernels/cuda/device/shared_memory.cuh"

namespace sparse_autotune {

template <typename T, typename Tile>
class AttentionBackwardConsumer : AttentionBackwardProducts<T, Tile> {
 public:
  __device__ __forceinline__ AttentionBackwardConsumer(const AttentionBackwardArgumentsSm90& args,
                                                       const AttentionBackwardShared<Tile>& shared,
                                                       int consumer)
      : AttentionBackwardProducts<T, Tile>(args, shared, Tile::kUsers == 2 ? consumer : 0),
        consumer_(consumer) {}

  __device__ __forceinline__ void run() {
    auto queue = shared_.queue();
    for (;;) {
      const AttentionItem item = queue.pop();
      if (item.tiles < 0) break;
      attend(item);
    }
    if (threadIdx.x % 32 == 0) tma_store_wait<0>();
  }

 private:
  using Products = AttentionBackwardProducts<T, Tile>;
  using Products::args_, Products::shared_, Products::user_;
  using typename Products::Dq;
  using typename Products::Scores;
  using typename Products::Sums;
  using typename Products::Words;

  __device__ __forceinline__ void attend(const AttentionItem& item) {
    const int own_column =
        item.row + user_ * kUserColumns + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
    Sums dk = {}, dv = {};
    Dq dq;
    int dq_before = kNoPlace;
    if (item.tiles > 0) {
      mbarrier_wait(shared_.k_full(kv_at_.stage), kv_at_.parity);
#pragma unroll 1
      for (int left = item.tiles; left > 0; --left) {
        const bool first = left == item.tiles;
        if constexpr (Tile::kUsers == 2) {
          dq_before = take_step_of_pair(own_column, first, dq_before, dk, dv);
        } else {
          take_step(own_column, first, dk, dv);
        }
      }
      if constexpr (Tile::kUsers == 2) multiply_dq_before(dq);
      wgmma::wait<0>();
      wgmma::pin(dk);
      wgmma::pin(dv);
      if (!Tile::kFinishesDk) mbarrier_arrive_warp(shared_.q_empty(stage_before()));
      mbarrier_arrive_warp(shared_.kv_empty(kv_at_.stage));
      kv_at_.advance();
      if constexpr (Tile::kUsers == 2) wgmma::pin(dq);
    }
    const float one[2] = {1, 1}, scale[2] = {args_.scale, args_.scale};
    store_rows<T>(args_.dk, item.batch, item.head, own_column, args_.columns, dk, scale);
    store_rows<T>(args_.dv, item.batch, item.head, own_column, args_.columns, dv, one);
    // Last, as it waits until what was added before has been read.
    if constexpr (Tile::kUsers == 2) add_dq(dq, dq_before);
  }

  // Where two consumers share the item. `dq_before`: where dq of the step before belongs; an item's
  // first step multiplies what lies there, and adds it nowhere: ptxas lets no products overlap with
  // those in a branch. Returns where the step's own dq belongs.
  __device__ __forceinline__ int take_step_of_pair(int own_column, bool first, int dq_before,
                                                   Sums& dk, Sums& dv) {
    Scores score, dp;
    multiply_scores_of(first, score);
    if (Tile::kFinishesDk) multiply_dp(dp);
    wgmma::wait<Tile::kFinishesDk>();
    wgmma::pin(score);
    wgmma::pin(dk);
    if (!Tile::kFinishesDk) {
      if (!first) mbarrier_arrive_warp(shared_.q_empty(stage_before()));
      multiply_dp(dp);
    }
    Words word, ds;
    multiply_dv(score, dp, own_column, word, ds, dv);
    Dq dq;
    multiply_dq_before(dq);
    wgmma::fence();
    this->multiply_rows(dk, ds, shared_.q(at_.stage));
    wgmma::commit();
    this->write(ds, shared_.ds(dout_at().stage));
    const int dq_place = place_of_dq(at_.stage);
    wgmma::wait<!Tile::kFinishesDk>();
    wgmma::pin(dq);
    wgmma::pin(dv);
    __syncwarp();
    if (Tile::kFinishesDk) {
      wgmma::pin(dk);
      mbarrier_arrive_warp(shared_.q_empty(at_.stage));
    }
    mbarrier_arrive_warp(shared_.ds_full(dout_at().stage));
    mbarrier_arrive_warp(shared_.dout_empty(dout_at().stage));
    at_.advance();
    advance_dout();
    add_dq(dq, dq_before);
    return dq_place;
  }

  // dq of the step before, once both consumers have written its ds. Each has then multiplied the dq
  // before that one, too, so that its ds may be written over.
  __device__ __forceinline__ void multiply_dq_before(Dq& dq) const {
    const uint32_t before = dout_at().stage ^ 1;
    mbarrier_wait(shared_.ds_full(before), dout_at().parity ^ before);
    wgmma::fence();
    this->multiply_dq(dq, shared_.ds(before), kv_at_.stage, 0);
    wgmma::commit();
  }

  // The step's; on return its dout, and in an item's first step v, are there.
  __device__ __forceinline__ void multiply_scores_of(bool first, Scores& score) const {
    mbarrier_wait(shared_.q_full(at_.stage), at_.parity);
    wgmma::fence();
    this->multiply_scores(score, shared_.k(kv_at_.stage), shared_.q(at_.stage));
    wgmma::commit();
    // Steps of 128 rows have no register for `first`; v stays there for the whole item.
    if (first || Tile::kFinishesDk) mbarrier_wait(shared_.v_full(kv_at_.stage), kv_at_.parity);
    mbarrier_wait(shared_.dout_full(dout_at().stage), dout_at().parity);
  }

  __device__ __forceinline__ void multiply_dp(Scores& dp) const {
    wgmma::fence();
    this->multiply_scores(dp, shared_.v(kv_at_.stage), shared_.dout(dout_at().stage));
    wgmma::commit();
  }

  // From scores that are there and dp that is under way to ds; dv is under way on return, and reads
  // p from `word`.
  __device__ __forceinline__ void multiply_dv(Scores& score, Scores& dp, int own_column,
                                              Words& word, Words& ds, Sums& dv) const {
    this->exponentials(score, at_.stage);
    this->hide(score, at_.stage, own_column);
    wgmma::round_sums<T>(word, score);
    wgmma::fence();
    this->multiply_rows(dv, word, shared_.dout(dout_at().stage));
    wgmma::commit();
    wgmma::wait<1>();
    wgmma::pin(dp);
    this->differences(dp, word, dout_at().stage);
    wgmma::round_sums<T>(ds, dp);
  }

  // Where the consumer has the item for itself.
  __device__ __forceinline__ void take_step(int own_column, bool first, Sums& dk, Sums& dv) {
    Scores score, dp;
    multiply_scores_of(first, score);
    multiply_dp(dp);
    wgmma::wait<1>();
    wgmma::pin(score);
    if (!first) mbarrier_arrive_warp(shared_.q_empty(stage_before()));
    Words word, ds;
    multiply_dv(score, dp, own_column, word, ds, dv);
    meet();  // the step before has been read by all warps
    this->write(ds, shared_.ds(0));
    meet();
    Dq dq;
    wgmma::fence();
    this->multiply_dq(dq, shared_.ds(0), kv_at_.stage, 0);
    wgmma::commit();
    const int dq_place = place_of_dq(at_.stage);
    if constexpr (Tile::kDqParts == 2) {
      wgmma::wait<0>();
      wgmma::pin(dq);
      add_dq(dq, dq_place);
      wgmma::fence();
      this->multiply_dq(dq, shared_.ds(0), kv_at_.stage, 1);
      wgmma::commit();
    }
    this->multiply_rows(dk, ds, shared_.q(at_.stage));
    wgmma::commit();
    wgmma::wait<1>();
    wgmma::pin(dq);
    mbarrier_arrive_warp(shared_.dout_empty(dout_at().stage));
    advance_dout();
    at_.advance();
    add_dq(dq, dq_place + Tile::kDqParts - 1);
  }

  // Where rings of q and dout have as many stages, one place serves both, and spares registers.
  static constexpr bool kOneRing = Tile::kStages == Tile::kStagesDout;
  __device__ __forceinline__ const auto& dout_at() const {
    if constexpr (kOneRing) {
      return at_;
    } else {
      return dout_at_;
    }
  }
  __device__ __forceinline__ void advance_dout() {
    if constexpr (!kOneRing) dout_at_.advance();
  }

  // All warps of the consumer.
  __device__ __forceinline__ void meet() const { warpgroup_sync(1 + consumer_); }

  __device__ __forceinline__ uint32_t stage_before() const {
    return at_.stage == 0 ? Tile::kStages - 1 : at_.stage - 1;
  }

  // Where the warp's 16 rows of a step's dq belong: how many of 16 rows by 64 columns come before,
  // or a number below 0, also for the second of two parts.
  static constexpr int kNoPlace = -2;
  __device__ __forceinline__ int place_of_dq(uint32_t stage) const {
    const int row = this->dq_rows(0) * kDqRows + threadIdx.x / 32 % 4 * 16;
    const ColumnPiece piece = this->piece_at(stage, row / Tile::kPiece);
    const int tiles = load_shared<int>(shared_.rows_before(stage));
    if (Tile::kMerges && piece.block_rows == 0) return kNoPlace;
    return (tiles + (piece.column + row % Tile::kPiece) / 16) * Tile::kPanels + this->dq_panel(0);
  }

  // A warp's 16 rows, in the order of fragments. Atomic instructions would hold up the warps that
  // should hand out products; the engine that copies adds, too.
  __device__ __forceinline__ void add_dq(const Dq& dq, int place) const {
    if (place < 0) return;
    constexpr int kBytes = Tile::kDqBytes / 4;
    const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    const uint32_t from = shared_.dq(user_) + warp * kBytes;
    if (lane == 0) tma_store_wait<0>();
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kLineHalves / 8; ++i) {
      store_shared(from + (i * 32 + lane) * 16,
                   make_float4(dq[4 * i], dq[4 * i + 1], dq[4 * i + 2], dq[4 * i + 3]));
    }
    tma_store_fence();
    __syncwarp();
    if (lane == 0) tma_add(args_.dq.sums + int64_t{place} * (kBytes / 4), from, kBytes);
  }

  const int consumer_;
  RingPlace<Tile::kStages> at_;
  // Of dout, and of ds where two consumers share an item.
  RingPlace<Tile::kStagesDout> dout_at_;
  static_assert(Tile::kUsers == 1 || Tile::kDsBuffers == Tile::kStagesDout);
  RingPlace<Tile::kStagesKv> kv_at_;
};

}  // namespace sparse_autotune
