// Steps of a consumer warp of attention_warps_sm90: which pieces it multiplies next, and which
// stages it gives back then. The lister makes them, a list for each consumer, ahead of the copies.
#pragma once

#include "kernels/cuda/attention/attention_warps_tile_sm90.cuh"

namespace sparse_autotune {

// One or two pieces, or none: then stages are given back only. In shared memory low bits, which are
// 0 in addresses and columns of pieces, hold the rest.
struct WarpStep {
  uint32_t k[2];       // addresses
  uint32_t column[2];  // first columns; a single piece is there twice
  int pieces, stages;  // stages to give back
  bool is_last;        // of the item
};

// Of a consumer.
template <typename Tile>
class StepReader {
 public:
  __device__ __forceinline__ StepReader(const WarpRowsShared<Tile>& shared, int warp)
      : shared_(shared), warp_(warp) {}

  // Waits until its pieces are there.
  __device__ __forceinline__ WarpStep next() {
    while (listed_ == taken_) {
      asm volatile("ld.acquire.cta.shared::cta.u32 %0, [%1];\n"
                   : "=r"(listed_)
                   : "r"(shared_.step_count(warp_))
                   : "memory");
    }
    uint32_t word[4];
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(word[0]), "=r"(word[1]), "=r"(word[2]), "=r"(word[3])
                 : "r"(shared_.step(warp_, taken_))
                 : "memory");
    ++taken_;
    WarpStep step;
    step.pieces = word[2] & 3;
    step.is_last = word[2] >> 2 & 1;
    step.stages = word[3] & 15;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (step.pieces > 0) mbarrier_wait(shared_.full(word[i] & 31), word[i] >> 5 & 1);
      step.k[i] = word[i] & ~63u;
      step.column[i] = word[2 + i] & ~15u;
    }
    return step;
  }

  __device__ __forceinline__ void give_back(const WarpStep& step) {
    __syncwarp();
    const uint32_t lane = threadIdx.x % 32;
    uint32_t stage = first_ + lane;
    if (stage >= Tile::kStages) stage -= Tile::kStages;
    if (lane < step.stages) mbarrier_arrive(shared_.empty(stage));
    first_ += step.stages;
    if (first_ >= Tile::kStages) first_ -= Tile::kStages;
  }

 private:
  const WarpRowsShared<Tile> shared_;
  const int warp_;
  uint32_t listed_ = 0, taken_ = 0;  // steps
  uint32_t first_ = 0;               // the oldest stage that was not given back
};

// Of the lister's lane for a consumer. A step's second piece may come in a later stage than its
// first, but no consumer holds more than kHeld stages.
template <typename Tile>
class StepWriter {
 public:
  __device__ __forceinline__ StepWriter(const WarpRowsShared<Tile>& shared, int warp)
      : shared_(shared), warp_(warp) {}

  // A stage of which the consumer sees piece i where bit i of `pieces` is set.
  __device__ __forceinline__ void add(const RingPlace<Tile::kStages>& at, unsigned pieces,
                                      const int (&column)[Tile::kPieces]) {
    ++held_;
#pragma unroll
    for (int i = 0; i < Tile::kPieces; ++i) {
      if ((pieces >> i & 1) == 0) continue;
      const uint32_t k =
          shared_.k(at.stage) + i * Tile::kPiece * kLineBytes | at.stage | at.parity << 5;
      if (waits_) {
        const bool is_newest = pieces >> (i + 1) == 0;
        const int stages = is_newest ? held_ : held_ - 1;
        write(k_, k, column_, column[i], 2, stages, false);
        held_ -= stages;
        waits_ = false;
      } else {
        k_ = k;
        column_ = column[i];
        waits_ = true;
      }
    }
    if (held_ == Tile::kHeld) {
      write(k_, k_, column_, column_, waits_, held_, false);
      held_ = 0;
      waits_ = false;
    }
  }

  __device__ __forceinline__ void end_item() {
    write(k_, k_, column_, column_, waits_, held_, true);
    held_ = 0;
    waits_ = false;
  }

 private:
  __device__ __forceinline__ void write(uint32_t k0, uint32_t k1, int column0, int column1,
                                        int pieces, int stages, bool is_last) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};\n" ::"r"(shared_.step(warp_, listed_)),
                 "r"(k0), "r"(k1), "r"(column0 | pieces | is_last << 2), "r"(column1 | stages)
                 : "memory");
    ++listed_;
    asm volatile("st.release.cta.shared::cta.u32 [%0], %1;\n" ::"r"(shared_.step_count(warp_)),
                 "r"(listed_)
                 : "memory");
  }

  const WarpRowsShared<Tile> shared_;
  const int warp_;
  uint32_t listed_ = 0;  // steps
  int held_ = 0;         // stages that the next step may give back
  bool waits_ = false;   // a piece, for a second one
  uint32_t k_ = 0;
  int column_ = 0;
};

}  // namespace sparse_autotune
