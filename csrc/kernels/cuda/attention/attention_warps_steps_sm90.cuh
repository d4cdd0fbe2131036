// Steps of a consumer warp of attention_warps_sm90: which piece it multiplies next. The lister
// makes them, a list for each consumer, ahead of the copies.
#pragma once

#include "kernels/cuda/attention/attention_warps_tile_sm90.cuh"

namespace sparse_autotune {

// A piece, or an item's end. In shared memory, where it is one word of 64 bits, low bits that are 0
// in addresses and columns of pieces hold the rest.
struct WarpStep {
  uint32_t k;      // address
  uint32_t place;  // its stage, above that the parity of its copies, and kGivesBack
  int column;      // the first
  bool is_listed;  // else nothing of it is known yet
  bool is_last;    // the item's end
};

constexpr uint32_t kPlaceBits = 7, kStageBits = 5;       // of an address; of these
constexpr uint32_t kGivesBack = 1u << (kPlaceBits - 1);  // the stage has no further piece for it
constexpr uint32_t kStepIsLast = 1, kStepRound = 2;      // bits of a column

// Of a consumer. The list is a ring; a bit of each step says in which round it was written, so that
// a step is there as soon as its word is.
template <typename Tile>
class StepReader {
 public:
  __device__ __forceinline__ StepReader(const WarpRowsShared<Tile>& shared, int warp)
      : shared_(shared), list_(shared.step(warp, 0)) {}

  // The next one. Its piece may not be there yet.
  __device__ __forceinline__ WarpStep peek() const {
    uint64_t word;
    asm volatile("ld.relaxed.cta.shared::cta.u64 %0, [%1];\n"
                 : "=l"(word)
                 : "r"(list_ + taken_ % Tile::kSteps * Tile::kStepBytes)
                 : "memory");
    const auto low = static_cast<uint32_t>(word), high = static_cast<uint32_t>(word >> 32);
    WarpStep step;
    step.k = low >> kPlaceBits << kPlaceBits;
    step.place = low & ((1u << kPlaceBits) - 1);
    step.column = static_cast<int>(high & ~15u);
    step.is_last = (high & kStepIsLast) != 0;
    step.is_listed = ((high & kStepRound) != 0) == (taken_ / Tile::kSteps % 2 == 0);
    return step;
  }
  __device__ __forceinline__ void take() { ++taken_; }

  // Waits for it.
  __device__ __forceinline__ WarpStep next() {
    WarpStep step;
    do step = peek();
    while (!step.is_listed);
    take();
    return step;
  }

  // Calls `multiply` with each step of an item. The next step is read before: it is often listed
  // by the time that it is wanted.
  template <typename Multiply>
  __device__ __forceinline__ void for_each(Multiply&& multiply) {
    WarpStep step = next();
    while (!step.is_last) {
      const WarpStep after = peek();
      wait(step);
      multiply(step);
      give_back(step.place);
      if (after.is_listed) {
        step = after;
        take();
      } else {
        step = next();
      }
    }
  }

  __device__ __forceinline__ bool is_there(const WarpStep& step) const {
    return mbarrier_is_over(shared_.full(stage_of(step.place)), step.place >> kStageBits & 1);
  }
  __device__ __forceinline__ void wait(const WarpStep& step) const {
    mbarrier_wait(shared_.full(stage_of(step.place)), step.place >> kStageBits & 1);
  }

  // By the whole warp, of a step that it has finished.
  __device__ __forceinline__ void give_back(uint32_t place) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0 && (place & kGivesBack) != 0) {
      mbarrier_arrive(shared_.empty(stage_of(place)));
    }
  }

 private:
  static __device__ __forceinline__ uint32_t stage_of(uint32_t place) {
    return place & ((1u << kStageBits) - 1);
  }

  const WarpRowsShared<Tile> shared_;
  const uint32_t list_;
  uint32_t taken_ = 0;  // steps
};

// Of the lister, which must be faster than all consumers. Each consumer has equally many lanes, and
// each of its lanes the same share of a stage's pieces.
template <typename Tile>
class StepWriter {
 public:
  static constexpr int kLanes = Tile::kPieces == 1 ? 1 : 32 / Tile::kWarps;  // of a consumer
  static constexpr int kShare = Tile::kPieces / kLanes;                      // pieces of a lane
  static_assert(kShare * kLanes == Tile::kPieces, "lanes have equal shares");

  __device__ __forceinline__ explicit StepWriter(const WarpRowsShared<Tile>& shared)
      : shared_(shared) {}

  // The lane's; some lanes have none, which counts as one past the last.
  static __device__ __forceinline__ int consumer() {
    return min(static_cast<int>(threadIdx.x) % 32 / kLanes, Tile::kWarps);
  }
  // Of a stage, piece i of the lane's.
  static __device__ __forceinline__ int piece(int i) {
    return static_cast<int>(threadIdx.x) % kLanes + i * kLanes;
  }

  // By the whole warp: a stage of which the lane's consumer sees piece(i) where bit i of `seen` is
  // set. Returns how many consumers see nothing of it.
  __device__ __forceinline__ int add(const RingPlace<Tile::kStages>& at, unsigned seen,
                                     const int (&column)[kShare]) {
    static_assert(Tile::kStages <= 1 << kStageBits, "they stand in the low bits of an address");
    unsigned all = 0;  // pieces that the consumer sees
#pragma unroll
    for (int i = 0; i < kShare; ++i) {
      const unsigned lanes =
          __ballot_sync(~0u, seen >> i & 1) >> threadIdx.x % 32 / kLanes * kLanes;
      all |= (lanes & ((1u << kLanes) - 1)) << i * kLanes;
    }
    const uint32_t k = shared_.k(at.stage) | at.stage | at.parity << kStageBits;
#pragma unroll
    for (int i = 0; i < kShare; ++i) {
      const unsigned from = all >> piece(i);
      const uint32_t gives_back = from == 1 ? kGivesBack : 0;
      if (from & 1) {
        write(listed_ + __popc(all) - __popc(from),
              k + piece(i) * Tile::kPieceLineBytes + gives_back, column[i]);
      }
    }
    listed_ += __popc(all);
    return __popc(__ballot_sync(~0u, is_first() && all == 0));
  }

  __device__ __forceinline__ void end_item() {
    if (is_first()) write(listed_, 0, kStepIsLast);
    ++listed_;
  }

 private:
  // Whether the lane is the first of a consumer's.
  static __device__ __forceinline__ bool is_first() {
    return consumer() < Tile::kWarps && piece(0) == 0;
  }

  __device__ __forceinline__ void write(uint32_t i, uint32_t low, uint32_t column) {
    const uint32_t high = column | (i / Tile::kSteps % 2 == 0 ? kStepRound : 0);
    // A relaxed store would do, and takes as long, but racecheck reports the reads that poll it.
    asm volatile(
        "atom.relaxed.cta.shared::cta.exch.b64 _, [%0], %1;\n" ::"r"(shared_.step(consumer(), i)),
        "l"(static_cast<uint64_t>(high) << 32 | low)
        : "memory");
  }

  const WarpRowsShared<Tile> shared_;
  uint32_t listed_ = 0;  // steps
};

}  // namespace sparse_autotune
