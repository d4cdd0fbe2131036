// The ring of steps in shared memory that a warp fills by TMA for fp64 tiles, behind it what comes
// with each step (Tile::kNoteBytes), behind that the barriers.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/mbarrier.cuh"
#include "kernels/cuda/device/tma.cuh"

namespace sparse_autotune {

template <typename Tile>
struct DmmaRing {
  char* memory;
  uint32_t address;

  __device__ __forceinline__ explicit DmmaRing(char* shared) {
    const auto start = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
    address = align_swizzled(start);
    memory = shared + (address - start);
  }
  __device__ __forceinline__ uint32_t note(uint32_t stage) const {
    return address + Tile::kStages * Tile::kStageBytes + stage * Tile::kNoteBytes;
  }
  __device__ __forceinline__ uint32_t full(uint32_t stage) const {
    return note(Tile::kStages) + stage * 8;
  }
  __device__ __forceinline__ uint32_t empty(uint32_t stage) const {
    return full(Tile::kStages + stage);
  }

  // By one thread, which the others wait for: each stage is filled by one, and left by all warps.
  __device__ __forceinline__ void init_barriers() const {
    for (int i = 0; i < Tile::kStages; ++i) {
      mbarrier_init(full(i), 1);
      mbarrier_init(empty(i), Tile::kWarps);
    }
    mbarrier_init_fence();
  }
};

}  // namespace sparse_autotune
