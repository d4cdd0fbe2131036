// Items of work on their way from the producer warp that takes them to the consumers that do them.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/mbarrier.cuh"
#include "kernels/cuda/device/tma.cuh"

namespace sparse_autotune {

// The rows of a tile, in one head.
struct AttentionItem {
  int row, head, batch;
  int tiles;  // to walk along: 0 where there is nothing to add up, -1: there is no further item
};

// Item i, of `rows` rows. Heads are taken a few at a time, as many as have k and v that L2 holds;
// among these, rows from the last: under a causal mask they see the most, and what is short is left
// for the end.
template <typename Arguments>
__device__ __forceinline__ AttentionItem item_at(const Arguments& args, int i, int rows) {
  const int share = args.heads_at_once * args.row_tiles, first = i / share * args.heads_at_once;
  const int heads = min(args.heads_at_once, args.batch_heads - first);
  const int rest = i % share, tile = rest / heads, head = first + rest - tile * heads;
  return {(args.row_tiles - 1 - tile) * rows, head % args.heads, head / args.heads, 0};
}

// Takes items 0, 1, 2, ... in turn: the first of each taker is given, the others go to whoever is
// free, or are dealt out in turn where there is no counter. By one thread.
class ItemCounter {
 public:
  // `counter` is 0 when the kernel starts and when it ends; or null.
  __device__ __forceinline__ ItemCounter(unsigned* counter, int items, int takers)
      : counter_(counter), items_(items), takers_(takers) {}

  // The one after item i. Each taker with an item is refused once, so this is called as often as
  // there are items, and the last call leaves 0.
  __device__ __forceinline__ int next(int i) const {
    if (counter_ == nullptr) return i + takers_;
    return takers_ + static_cast<int>(atomicInc(counter_, static_cast<unsigned>(items_ - 1)));
  }

 private:
  unsigned* counter_;
  int items_, takers_;
};

// Lives in shared memory, as an address aligned to 16; `kReaders` warps read every item.
template <int kReaders>
class ItemQueue {
 public:
  static constexpr int kSlots = 2, kBytes = kSlots * (sizeof(AttentionItem) + 2 * 8);

  __device__ __forceinline__ explicit ItemQueue(uint32_t memory) : memory_(memory) {}

  __device__ __forceinline__ void init_barriers() const {
    for (uint32_t i = 0; i < kSlots; ++i) {
      mbarrier_init(full(i), 1);
      mbarrier_init(empty(i), kReaders);
    }
  }

  // By a whole warp.
  __device__ __forceinline__ void push(const AttentionItem& item) {
    mbarrier_wait(empty(at_.stage), at_.parity ^ 1);
    if (elect_one()) {
      asm volatile("st.shared.v4.s32 [%0], {%1, %2, %3, %4};\n" ::"r"(slot(at_.stage)),
                   "r"(item.row), "r"(item.head), "r"(item.batch), "r"(item.tiles)
                   : "memory");
      mbarrier_arrive(full(at_.stage));
    }
    __syncwarp();
    at_.advance();
  }

  // By a whole warp of those that read.
  __device__ __forceinline__ AttentionItem pop() {
    mbarrier_wait(full(at_.stage), at_.parity);
    AttentionItem item;
    asm volatile("ld.shared.v4.s32 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(item.row), "=r"(item.head), "=r"(item.batch), "=r"(item.tiles)
                 : "r"(slot(at_.stage))
                 : "memory");
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(empty(at_.stage));
    at_.advance();
    return item;
  }

 private:
  __device__ __forceinline__ uint32_t slot(uint32_t i) const {
    return memory_ + i * sizeof(AttentionItem);
  }
  __device__ __forceinline__ uint32_t full(uint32_t i) const {
    return memory_ + kSlots * sizeof(AttentionItem) + i * 8;
  }
  __device__ __forceinline__ uint32_t empty(uint32_t i) const { return full(kSlots + i); }

  uint32_t memory_;
  RingPlace<kSlots> at_;
};

}  // namespace sparse_autotune
