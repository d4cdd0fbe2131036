// The ring of steps in shared memory that a warp fills by TMA for fp64 tiles.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/device/mbarrier.cuh"
#include "kernels/cuda/device/tma.cuh"

namespace sparse_autotune {

// What a thread block keeps in shared memory, from a multiple of kSwizzleAlignment on.
template <int kStages, int kStageBytes, int kNoteBytes>
struct DmmaRingLayout {
  std::byte stages[kStages][kStageBytes];
  std::byte notes[kStages][kNoteBytes];  // what comes with each step
  RingBarriers<kStages> barriers;
};

template <typename Tile>
struct DmmaRing : RingBarriersAt<Tile::kStages> {
  using Layout = DmmaRingLayout<Tile::kStages, Tile::kStageBytes, Tile::kNoteBytes>;
  char* memory;
  uint32_t address;

  __device__ __forceinline__ explicit DmmaRing(char* shared) {
    const auto start = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
    address = align_swizzled(start);
    memory = shared + (address - start);
    this->barriers = address + offsetof(Layout, barriers);
  }
  __device__ __forceinline__ uint32_t note(uint32_t stage) const {
    return address + offsetof(Layout, notes) + stage * Tile::kNoteBytes;
  }

  // By one thread, which the others wait for: each stage is filled by one, and left by all warps.
  __device__ __forceinline__ void init_barriers() const {
    this->init(1, Tile::kWarps);
    mbarrier_init_fence();
  }
};

}  // namespace sparse_autotune
