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
// first, but no consumer holds more than kHeld stages. Lanes differ in what they see, so there are
// selections here in place of branches: the lister must be faster than all consumers.
template <typename Tile>
class StepWriter {
 public:
  __device__ __forceinline__ StepWriter(const WarpRowsShared<Tile>& shared, int warp)
      : shared_(shared), warp_(warp) {}

  // A stage of which the consumer sees piece i where bit i of `seen` is set.
  __device__ __forceinline__ void add(const RingPlace<Tile::kStages>& at, unsigned seen,
                                      const int (&column)[Tile::kPieces]) {
    static_assert(Tile::kPieces == 4, "at most two steps, and a piece that waits");
    // Pieces in their order, four bits each; kWaiting is that of an earlier stage.
    unsigned order = waits_ ? kWaiting : 0;
    int count = waits_;
#pragma unroll
    for (int i = 0; i < Tile::kPieces; ++i) {
      const bool sees = seen >> i & 1;
      order |= sees ? i << 4 * count : 0;
      count += sees;
    }
    const uint32_t k = shared_.k(at.stage) | at.stage | at.parity << 5;
    const auto piece = [&](int i) {
      const unsigned which = order >> 4 * i & 15;
      const int low = which & 1 ? column[1] : column[0], high = which & 1 ? column[3] : column[2];
      Piece p = {k + which * (Tile::kPiece * kLineBytes), which & 2 ? high : low};
      if (which == kWaiting) p = waiting_;
      return p;
    };
    ++held_;
    const int odd = count & 1;  // the last piece waits, and its stage is held
    if (count >= 2) {
      write(piece(0), piece(1), 2, count == 2 ? held_ : held_ - 1, false);
      held_ = 1;
    }
    if (count >= 4) write(piece(2), piece(3), 2, 1 - odd, false);
    if (count >= 2) held_ = odd;
    if (odd != 0) waiting_ = piece(count - 1);
    waits_ = odd != 0;
    if (held_ == Tile::kHeld) flush(false);
    publish();
  }

  __device__ __forceinline__ void end_item() {
    flush(true);
    publish();
  }

 private:
  static constexpr unsigned kWaiting = 8;
  struct Piece {
    uint32_t k;
    int column;
  };

  __device__ __forceinline__ void flush(bool is_last) {
    write(waiting_, waiting_, waits_, held_, is_last);
    held_ = 0;
    waits_ = false;
  }

  __device__ __forceinline__ void write(Piece first, Piece second, int pieces, int stages,
                                        bool is_last) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};\n" ::"r"(shared_.step(warp_, listed_)),
                 "r"(first.k), "r"(second.k), "r"(first.column | pieces | is_last << 2),
                 "r"(second.column | stages)
                 : "memory");
    ++listed_;
  }

  __device__ __forceinline__ void publish() const {
    asm volatile("st.release.cta.shared::cta.u32 [%0], %1;\n" ::"r"(shared_.step_count(warp_)),
                 "r"(listed_)
                 : "memory");
  }

  const WarpRowsShared<Tile> shared_;
  const int warp_;
  uint32_t listed_ = 0;  // steps
  int held_ = 0;         // stages that the next step may give back
  bool waits_ = false;   // whether a piece waits for a second one
  Piece waiting_ = {0, 0};
};

}  // namespace sparse_autotune
