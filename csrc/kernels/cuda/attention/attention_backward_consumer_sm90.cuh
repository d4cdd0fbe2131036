// A consumer warpgroup of attention_backward_sm90: 64 rows of k and v against all steps of an item.
//
// With n the consumer's columns and m the step's rows, it multiplies
//   s[n, m] = k q^T,  dp[n, m] = v dout^T,  dv[n, :] += p dout,  dk[n, :] += ds q,
//   dq[m, :] = ds^T k
// p and ds stay in registers as operands of dv and dk; dq needs ds with the rows along m, and,
// where two consumers share an item, that of both, so it goes through shared memory. A step's dk is
// multiplied last; where registers suffice it is left to the next step, whose scores follow it
// without a pause.
#pragma once

#include "kernels/cuda/attention/attention_backward_products_sm90.cuh"
#include "kernels/cuda/attention/store_rows.cuh"

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
  // Where the warp's 16 rows of a step's dq belong.
  struct Step {
    int row, head;
    bool exists;
  };

  // All consumers of the pipeline.
  __device__ __forceinline__ void meet() const {
    asm volatile("bar.sync %0, %1;\n" ::"r"(1 + (Tile::kUsers == 2 ? 0 : consumer_)),
                 "n"(Tile::kUsers * kWarpgroup)
                 : "memory");
  }

  __device__ __forceinline__ void attend(const AttentionItem& item) {
    const int column = item.row + user_ * kUserColumns;
    const int own_column = column + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
    Sums dk = {}, dv = {};
    if (item.tiles > 0) {
      mbarrier_wait(shared_.kv_full(kv_at_.stage), kv_at_.parity);
#pragma unroll 1
      for (int i = 0; i < item.tiles; ++i) {
        take_step(item, column, own_column, i > 0, dk, dv);
      }
      wgmma::wait<0>();
      wgmma::pin(dk);
      wgmma::pin(dv);
      if (Tile::kLeavesDk) mbarrier_arrive_warp(shared_.q_empty(stage_before()));
      mbarrier_arrive_warp(shared_.kv_empty(kv_at_.stage));
      kv_at_.advance();
    }
    const float one[2] = {1, 1}, scale[2] = {args_.scale, args_.scale};
    store_rows<T>(args_.dk, item.batch, item.head, own_column, args_.columns, dk, scale);
    store_rows<T>(args_.dv, item.batch, item.head, own_column, args_.columns, dv, one);
  }

  // `has_before`: dk of the step before is still being multiplied.
  __device__ __forceinline__ void take_step(const AttentionItem& item, int column, int own_column,
                                            bool has_before, Sums& dk, Sums& dv) {
    Scores score, dp;
    mbarrier_wait(shared_.q_full(at_.stage), at_.parity);
    wgmma::fence();
    this->multiply_scores(score, shared_.k(kv_at_.stage), shared_.q(at_.stage));
    wgmma::commit();
    mbarrier_wait(shared_.dout_full(dout_at_.stage), dout_at_.parity);
    wgmma::fence();
    this->multiply_scores(dp, shared_.v(kv_at_.stage), shared_.dout(dout_at_.stage));
    wgmma::commit();
    wgmma::wait<1>();
    wgmma::pin(score);
    if (Tile::kLeavesDk && has_before) mbarrier_arrive_warp(shared_.q_empty(stage_before()));
    this->exponentials(score, at_.stage);
    this->hide(score, at_.stage, column, own_column);
    Words word;
    wgmma::round_sums<T>(word, score);
    wgmma::fence();
    this->multiply_rows(dv, word, shared_.dout(dout_at_.stage));
    wgmma::commit();
    wgmma::wait<1>();
    wgmma::pin(dp);
    this->differences(dp, word, dout_at_.stage);
    Words ds;
    wgmma::round_sums<T>(ds, dp);
    if constexpr (Tile::kDsBuffers == 1) meet();  // the step before has been read by all warps
    const uint32_t ds_tile = shared_.ds(buffer_);
    if (Tile::kDsBuffers == 2) buffer_ ^= 1;
    this->write(ds, ds_tile);
    meet();
    Dq dq;
    wgmma::fence();
    this->multiply_dq(dq, ds_tile, kv_at_.stage, 0);
    wgmma::commit();
    const Step step = step_at(at_.stage);
    if constexpr (Tile::kDqParts == 2) {
      wgmma::wait<0>();
      wgmma::pin(dq);
      add_dq(dq, step, 0, item.batch);
      wgmma::fence();
      this->multiply_dq(dq, ds_tile, kv_at_.stage, 1);
      wgmma::commit();
    }
    this->multiply_rows(dk, ds, shared_.q(at_.stage));
    wgmma::commit();
    wgmma::wait<Tile::kLeavesDk>();
    wgmma::pin(dq);
    if constexpr (!Tile::kLeavesDk) {
      wgmma::pin(dk);
      wgmma::pin(dv);
      mbarrier_arrive_warp(shared_.q_empty(at_.stage));
    }
    mbarrier_arrive_warp(shared_.dout_empty(dout_at_.stage));
    dout_at_.advance();
    at_.advance();
    add_dq(dq, step, Tile::kDqParts - 1, item.batch);
  }

  __device__ __forceinline__ uint32_t stage_before() const {
    return at_.stage == 0 ? Tile::kStages - 1 : at_.stage - 1;
  }

  __device__ __forceinline__ Step step_at(uint32_t stage) const {
    const int row = this->dq_rows(0) * kDqRows + threadIdx.x / 32 % 4 * 16;
    const ColumnPiece piece = this->piece_at(stage, row / Tile::kPiece);
    int head;
    asm volatile("ld.shared.s32 %0, [%1];\n" : "=r"(head) : "r"(shared_.head(stage)) : "memory");
    return {piece.column + row % Tile::kPiece, head, piece.block_rows != 0};
  }

  // A warp's 16 rows, in the order of fragments. Atomic instructions would hold up the warps that
  // should hand out products; the engine that copies adds, too.
  __device__ __forceinline__ void add_dq(const Dq& dq, const Step& step, int part,
                                         int batch) const {
    if (Tile::kMerges && !step.exists) return;
    constexpr int kBytes = Tile::kDqBytes / 4;
    const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    const uint32_t from = shared_.dq(user_) + warp * kBytes;
    if (lane == 0) tma_store_wait<0>();
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kLineHalves / 8; ++i) {
      asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};\n" ::"r"(from + (i * 32 + lane) * 16),
                   "f"(dq[4 * i]), "f"(dq[4 * i + 1]), "f"(dq[4 * i + 2]), "f"(dq[4 * i + 3])
                   : "memory");
    }
    tma_store_fence();
    __syncwarp();
    const int64_t tile =
        (static_cast<int64_t>(batch) * args_.heads + step.head) * args_.row_tiles * (kDqRows / 16) +
        step.row / 16;
    const int64_t panel = tile * Tile::kPanels + this->dq_panel(part);
    if (lane == 0) tma_add(args_.dq + panel * (kBytes / 4), from, kBytes);
  }

  const int consumer_;
  RingPlace<Tile::kStages> at_;
  RingPlace<Tile::kStagesDout> dout_at_;
  RingPlace<Tile::kStagesKv> kv_at_;
  uint32_t buffer_ = 0;
};

}  // namespace sparse_autotune
