// The tiles of C that a thread block has taken on, on their way from the warp that asks for them to
// those that work. Asking takes four trips to L2 in a row (counter, row, its range, its columns),
// so it is done while the tile before is being computed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/device/mbarrier.cuh"
#include "kernels/cuda/device/shared_memory.cuh"

namespace sparse_autotune {

struct TileTask {
  int row, column, batch;  // of C, the tile's first
  int begin, end;          // stored blocks
  int strip;               // the tile's first row within its blocks
  int slot;                // of OrderedRow
  int other;               // for the family that has two rows in a tile
  bool valid;              // false: there is no further tile
};

constexpr int kQueueSlots = 2;  // tasks

// A stored block: its column index, and where in values it lies if blocks do not lie in order.
struct BlockPlace {
  int column = 0, position = 0;
};

// Lives in shared memory, as addresses. `kReaders` warps read every task, `kBlockReaders` of them
// the places that come with it too, one a lane. Each lane that touches these arrives for itself:
// compute-sanitizer follows no __syncwarp to the arrival of another lane.
template <int kReaders, int kBlockReaders = 1, typename Place = BlockPlace>
class TileQueue : RingBarriersAt<kQueueSlots> {
 public:
  struct Slot {
    int4 task[2];
    Place blocks[32];  // those that come with it
  };
  struct Layout {
    Slot slots[kQueueSlots];
    RingBarriers<kQueueSlots> barriers;
  };

  // `memory`: of a Layout.
  __device__ __forceinline__ explicit TileQueue(uint32_t memory)
      : RingBarriersAt<kQueueSlots>{memory + static_cast<uint32_t>(offsetof(Layout, barriers))},
        memory_(memory) {}

  __device__ __forceinline__ void init_barriers() const {
    init(32, kReaders - kBlockReaders + kBlockReaders * 32);
  }

  // By a whole warp. `block`: the lane's of the task's first 32 blocks.
  __device__ __forceinline__ void push(const TileTask& task, const Place& block) {
    mbarrier_wait(empty(at_.stage), at_.parity ^ 1);
    const uint32_t to = slot(at_.stage), lane = threadIdx.x % 32;
    store_shared(block_place(to, lane), block);
    if (lane == 0) {
      store_shared(to, make_int4(task.row, task.column, task.valid ? task.batch : -1, task.other));
      store_shared(to + 16, make_int4(task.begin, task.end, task.strip, task.slot));
    }
    mbarrier_arrive(full(at_.stage));
    at_.advance();
  }

  // By a whole warp, which gets the task and, if it is one of these, its lane's block.
  __device__ __forceinline__ TileTask pop(Place* block = nullptr) {
    mbarrier_wait(full(at_.stage), at_.parity);
    const uint32_t from = slot(at_.stage), lane = threadIdx.x % 32;
    const auto first = load_shared<int4>(from), second = load_shared<int4>(from + 16);
    const TileTask task = {.row = first.x,
                           .column = first.y,
                           .batch = first.z,
                           .begin = second.x,
                           .end = second.y,
                           .strip = second.z,
                           .slot = second.w,
                           .other = first.w,
                           .valid = first.z >= 0};
    if (block != nullptr) *block = load_shared<Place>(block_place(from, lane));
    __syncwarp();
    if (block != nullptr || lane == 0) mbarrier_arrive(empty(at_.stage));
    at_.advance();
    return task;
  }

 private:
  __device__ __forceinline__ uint32_t slot(uint32_t i) const {
    return memory_ + offsetof(Layout, slots) + i * sizeof(Slot);
  }
  static __device__ __forceinline__ uint32_t block_place(uint32_t slot, uint32_t i) {
    return slot + offsetof(Slot, blocks) + i * sizeof(Place);
  }

  uint32_t memory_;
  RingPlace<kQueueSlots> at_;
};

}  // namespace sparse_autotune
