// Items of work: what they are, and their way from the producer warp that takes them to the
// consumers that do them.
#pragma once

#include <cstdint>

#include "kernels/attention_arguments.h"
#include "kernels/cuda/attention/item_parts.cuh"
#include "kernels/cuda/attention/tile_lists.h"
#include "kernels/cuda/device/mbarrier.cuh"
#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/device/tma.cuh"

namespace sparse_autotune {

// What kernels are told whose items are tiles of rows, which walk along the columns they see.
struct AttentionWork {
  AttentionMask mask;
  TileLists lists;
  ItemParts parts;
  unsigned* counter;                             // see ItemCounter
  int rows, columns, heads, group, batch_heads;  // group: of q's heads for one of k
  int row_tiles, heads_at_end;
  int items;  // a part of an item counts as one
  float scale_log2;
  bool is_causal;
};

// Of a forward pass: scale_log2 is greater than 0.
struct ForwardWork : AttentionWork {
  AttentionTensor out;
  AttentionRowValues lse;
  bool is_negative;  // the caller's scale
};

// The rows of a tile, in one head.
struct AttentionItem {
  int row, head, batch;
  int tiles;      // to walk along: 0 where there is nothing to add up, -1: there is no further item
  int part = -1;  // of all parts of split items; -1: the item is not split
};

// Item i, of `rows` rows. Heads follow each other, so that few are in L2 at once. The tiles of the
// last `heads_at_end` take turns, from the last rows on, which see the most under a causal mask:
// what is short should be the last items. `kSplits`: items may be split.
template <bool kSplits>
__device__ __forceinline__ AttentionItem item_at(const AttentionWork& work, int i, int rows) {
  int part = -1;
  if (kSplits && i >= work.parts.whole) {
    part = i - work.parts.whole;
    i = work.parts.whole + part / work.parts.count;
  }
  const int tiles = work.row_tiles, at_end = work.heads_at_end, first = work.batch_heads - at_end;
  const int rest = i - first * tiles;
  const int tile = rest < 0 ? i % tiles : rest / at_end;
  const int head = rest < 0 ? i / tiles : first + rest % at_end;
  return {(tiles - 1 - tile) * rows, head % work.heads, head / work.heads, 0, part};
}

// Takes items 0, 1, 2, ... in turn: the first of each taker is given, the others go to whoever is
// free, or are dealt out in turn where there is no counter.
class ItemCounter {
 public:
  // `counter` is 0 when the kernel starts and when it ends; or null.
  __device__ __forceinline__ ItemCounter(unsigned* counter, int items, int takers)
      : counter_(counter), items_(items), takers_(takers) {}

  // Calls f of each item that a taker gets, of which i is the first. By a whole warp.
  template <typename F>
  __device__ __forceinline__ void for_each(int i, F&& f) const {
    while (i < items_) {
      int following = 0;
      if (threadIdx.x % 32 == 0) following = next(i);
      f(i);
      i = __shfl_sync(~0u, following, 0);
    }
  }

  // The one after item i, for a whole warp that has nothing to do meanwhile.
  __device__ __forceinline__ int next_of_warp(int i) const {
    return __shfl_sync(~0u, threadIdx.x % 32 == 0 ? next(i) : 0, 0);
  }

  // The one after item i, for one thread. Each taker with an item is refused once, so this is
  // called as often as there are items, and the last call leaves 0.
  __device__ __forceinline__ int next(int i) const {
    if (counter_ == nullptr) return i + takers_;
    return takers_ + static_cast<int>(atomicInc(counter_, static_cast<unsigned>(items_ - 1)));
  }

 private:
  unsigned* counter_;
  int items_, takers_;
};

// Lives in shared memory, as an address aligned to 16; `kReaders` warps read every item.
// `kSplits`: items may be split.
template <int kReaders, bool kSplits = false>
class ItemQueue {
 public:
  static constexpr int kSlots = 2, kSlotBytes = kSplits ? 32 : 16;
  static constexpr int kBytes = kSlots * (kSlotBytes + 2 * 8);

  __device__ __forceinline__ explicit ItemQueue(uint32_t memory) : memory_(memory) {}

  __device__ __forceinline__ void init_barriers() const {
    for (uint32_t i = 0; i < kSlots; ++i) {
      mbarrier_init(full(i), 1);
      mbarrier_init(empty(i), kReaders * kWarpArrivals);
    }
  }

  // By a whole warp.
  __device__ __forceinline__ void push(const AttentionItem& item) {
    mbarrier_wait(empty(at_.stage), at_.parity ^ 1);
    if (elect_one()) {
      store_shared(slot(at_.stage), make_int4(item.row, item.head, item.batch, item.tiles));
      if (kSplits) store_shared(slot(at_.stage) + 16, item.part);
      mbarrier_arrive(full(at_.stage));
    }
    __syncwarp();
    at_.advance();
  }

  // By a whole warp of those that read.
  __device__ __forceinline__ AttentionItem pop() {
    mbarrier_wait(full(at_.stage), at_.parity);
    AttentionItem item;
    const auto words = load_shared<int4>(slot(at_.stage));
    item.row = words.x;
    item.head = words.y;
    item.batch = words.z;
    item.tiles = words.w;
    if (kSplits) item.part = load_shared<int>(slot(at_.stage) + 16);
    __syncwarp();
    mbarrier_arrive_warp(empty(at_.stage));
    at_.advance();
    return item;
  }

 private:
  __device__ __forceinline__ uint32_t slot(uint32_t i) const { return memory_ + i * kSlotBytes; }
  __device__ __forceinline__ uint32_t full(uint32_t i) const {
    return memory_ + kSlots * kSlotBytes + i * 8;
  }
  __device__ __forceinline__ uint32_t empty(uint32_t i) const { return full(kSlots + i); }

  uint32_t memory_;
  RingPlace<kSlots> at_;
};

}  // namespace sparse_autotune
