// The ring of steps in shared memory that a warp fills by TMA for fp64 tiles; and steps of 16 k of
// small tiles, which dmma_flat_sm90 and sampled_dmma_sm90 have in common.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/device/mbarrier.cuh"
#include "kernels/cuda/device/shared_memory.cuh"
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

// Rows and columns of C that a thread block computes at a time.
template <int kRows, int kColumns, bool kTransposed, bool kRowMajor>
struct DmmaStepTile {
  static constexpr int kM = kRows, kN = kColumns, kWarpN = kM == 64 ? 16 : 32;
  static constexpr int kWarps = kN / kWarpN, kThreads = 32 * kWarps, kLaunched = kThreads + 32;
  static constexpr bool kTransposedA = kTransposed, kRowMajorB = kRowMajor;
  static constexpr int kSlices = 2, kUnitK = 8 * kSlices, kUnitLine = kUnitK * 8;
  static constexpr int kBytesA = kM * kUnitLine, kBytesB = kN * kUnitLine;
  static constexpr int kStageBytes = kBytesA + kBytesB, kNoteBytes = 8;
  // 12 warps leave each 168 registers.
  static constexpr int kResident = std::min({64 * 128 / (kM * kN), 12 / (kWarps + 1), 4});
  static constexpr int kStages = std::min(
      (227 * 1024 / kResident - 1024 - kSwizzleAlignment) / (kStageBytes + kNoteBytes + 16), 8);
  static constexpr int kSharedBytes =
      kSwizzleAlignment + sizeof(DmmaRingLayout<kStages, kStageBytes, kNoteBytes>);
  static constexpr int kTilesN = kM / 8, kTilesM = kWarpN / 16, kSums = kTilesN * kTilesM * 4;
  // A costly activation goes by way of a stage.
  static_assert(kSums % 16 == 0 && kThreads * 64 <= kStageBytes,
                "activations go through the ring, 64 bytes a thread");
};

// What comes with a step: the block row, or a stored block, and what is to be done.
struct DmmaStep {
  int row;
  uint32_t what;
};
constexpr uint32_t kStepMultiplies = 1, kStepIsLast = 2, kStepFromBefore = 4, kStepGoesOn = 8,
                   kStepsEnd = 16;

// For a whole warp. One lane reads, the one that hands the step back.
__device__ __forceinline__ DmmaStep load_dmma_step(uint32_t from) {
  const DmmaStep step = threadIdx.x % 32 == 0 ? load_shared<DmmaStep>(from) : DmmaStep{};
  return {__shfl_sync(~0u, step.row, 0), __shfl_sync(~0u, step.what, 0)};
}

}  // namespace sparse_autotune
