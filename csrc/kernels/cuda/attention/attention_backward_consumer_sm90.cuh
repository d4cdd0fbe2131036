// A consumer warpgroup of attention_backward_sm90: 64 rows of k and v against all steps of an item.
//
// With n the consumer's columns and m the step's rows, it multiplies
//   s[n, m] = k q^T,  dp[n, m] = v dout^T,  dv[n, :] += p dout,  dk[n, :] += ds q,
//   dq[m, :] = ds^T k
// p and ds stay in registers as operands of dv and dk; dq needs ds with the rows along m, and,
// where two consumers share an item, that of both, so it goes through shared memory. A step's dq is
// added to memory while the next step's scores are being multiplied.
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
      if (item.tiles < 0) return;
      attend(item);
    }
  }

 private:
  using Products = AttentionBackwardProducts<T, Tile>;
  using Products::args_, Products::shared_, Products::user_, Products::kDqParts;
  using typename Products::Dq;
  using typename Products::Scores;
  using typename Products::Sums;
  using typename Products::Words;
  // Whether a step's dq is left to the next; two parts of it would take too many registers.
  static constexpr bool kLate = kDqParts == 1;
  struct Step {
    int row, head;
  };

  __device__ __forceinline__ void arrive(uint32_t barrier) const {
    if (threadIdx.x % 32 == 0) mbarrier_arrive(barrier);
  }
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
      Dq late;
      Step before;
#pragma unroll 1
      for (int i = 0; i < item.tiles; ++i) {
        take_step(item, column, own_column, i > 0, before, late, dk, dv);
      }
      if (kLate) add_dq(late, before, 0, item.batch);
      arrive(shared_.kv_empty(kv_at_.stage));
      kv_at_.advance();
    }
    const float one[2] = {1, 1}, scale[2] = {args_.scale, args_.scale};
    store(args_.dk, item, own_column, dk, scale);
    store(args_.dv, item, own_column, dv, one);
  }

  // `before` is the step whose dq is still to be added, if there is one.
  __device__ __forceinline__ void take_step(const AttentionItem& item, int column, int own_column,
                                            bool has_before, Step& before, Dq& late, Sums& dk,
                                            Sums& dv) {
    Scores score, dp;
    mbarrier_wait(shared_.q_full(at_.stage), at_.parity);
    wgmma::fence();
    this->multiply_scores(score, shared_.k(kv_at_.stage), shared_.q(at_.stage));
    wgmma::commit();
    if (kLate && has_before) add_dq(late, before, 0, item.batch);
    asm volatile("ld.shared.v2.s32 {%0, %1}, [%2];\n"
                 : "=r"(before.row), "=r"(before.head)
                 : "r"(shared_.step(at_.stage))
                 : "memory");
    mbarrier_wait(shared_.dout_full(at_.stage), at_.parity);
    wgmma::fence();
    this->multiply_scores(dp, shared_.v(kv_at_.stage), shared_.dout(at_.stage));
    wgmma::commit();
    wgmma::wait<1>();
    wgmma::pin(score);
    this->exponentials(score, at_.stage);
    this->hide(score, before.row, column, own_column);
    Words p;
    wgmma::round_sums<T>(p, score);
    wgmma::fence();
    this->multiply_rows(dv, p, shared_.dout(at_.stage));
    wgmma::commit();
    wgmma::wait<1>();
    wgmma::pin(dp);
    this->differences(dp, score, at_.stage);
    Words ds;
    wgmma::round_sums<T>(ds, dp);
    if constexpr (Tile::kDsBuffers == 1) meet();  // the step before has been read by all warps
    const uint32_t ds_tile = shared_.ds(Tile::kDsBuffers == 2 ? buffer_ : 0);
    buffer_ ^= 1;
    this->write(ds, ds_tile);
    meet();
    wgmma::fence();
    this->multiply_rows(dk, ds, shared_.q(at_.stage));
    Dq dq;
    this->multiply_dq(dq, ds_tile, kv_at_.stage, 0);
    wgmma::commit();
    wgmma::wait<0>();
    wgmma::pin(dq);
    wgmma::pin(dk);
    wgmma::pin(dv);
    arrive(shared_.q_empty(at_.stage));
    arrive(shared_.dout_empty(at_.stage));
    at_.advance();
    if constexpr (kDqParts == 2) {
      Dq other;
      wgmma::fence();
      this->multiply_dq(other, ds_tile, kv_at_.stage, 1);
      wgmma::commit();
      scale_dq(dq, late);
      add_dq(late, before, 0, item.batch);
      wgmma::wait<0>();
      wgmma::pin(other);
      scale_dq(other, late);
      add_dq(late, before, 1, item.batch);
    } else {
      scale_dq(dq, late);
    }
  }

  // To other registers: ptxas has whoever reads what wgmma wrote wait for all products.
  __device__ __forceinline__ void scale_dq(const Dq& dq, Dq& scaled) const {
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(Dq) / sizeof(float)); ++i) {
      scaled[i] = dq[i] * args_.scale;
    }
  }

  // In the order of fragments, so that a warp's threads add to neighbouring memory.
  __device__ __forceinline__ void add_dq(const Dq& dq, const Step& step, int part,
                                         int batch) const {
    const int64_t tile = (static_cast<int64_t>(batch) * args_.heads + step.head) * args_.row_tiles +
                         step.row / kStepRows;
    const int64_t panel = tile * Tile::kPanels + user_ * kDqParts + part;
    float* to = args_.dq + panel * kStepRows * kLineHalves + threadIdx.x % kWarpgroup * 4;
#pragma unroll
    for (int i = 0; i < kLineHalves / 8; ++i) {
      asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};\n" ::"l"(to + i * kWarpgroup * 4),
                   "f"(dq[4 * i]), "f"(dq[4 * i + 1]), "f"(dq[4 * i + 2]), "f"(dq[4 * i + 3])
                   : "memory");
    }
  }

  __device__ __forceinline__ void store(const AttentionTensor& to, const AttentionItem& item,
                                        int own_column, const Sums& sum,
                                        const float (&factor)[2]) const {
    T* row = static_cast<T*>(to.data) + item.batch * to.batch_stride + item.head * to.head_stride +
             own_column * to.row_stride;
    store_rows<T>(row, to.row_stride, args_.columns - own_column, sum, factor);
  }

  const int consumer_;
  RingPlace<Tile::kStages> at_;
  RingPlace<Tile::kStagesKv> kv_at_;
  uint32_t buffer_ = 0;
};

}  // namespace sparse_autotune
