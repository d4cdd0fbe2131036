// A tile of a result that a thread block computes with mma.sync, and how its warps share it.
#pragma once

#include "kernels/cuda/device/tile_loader.cuh"

namespace sparse_autotune {

// The tile, the bytes of k in one step, the steps in flight, the warps that share the tile, and how
// many thread blocks of it a multiprocessor should hold (which bounds the registers).
template <int kRows, int kColumns, int kBytes, int kDepth, int kWarpRows, int kWarpColumns,
          int kBlocks>
struct MmaTile {
  static constexpr int kM = kRows, kN = kColumns, kStepBytes = kBytes;
  static constexpr int kStages = kDepth, kResident = kBlocks;
  static constexpr int kWarpsN = kWarpColumns, kThreads = 32 * kWarpRows * kWarpColumns;
  static constexpr int kWarpM = kM / kWarpRows, kWarpN = kN / kWarpColumns;
  static constexpr int kSlices = kStepBytes / kSliceBytes;
  static constexpr int kStageBytes = (kM + kN) * kStepBytes;
  // Whether the threads that share a slice can copy a row of B in fp32.
  static constexpr bool kHasTf32 = kThreads / kSlices >= kN / kChunk<float>;
  // Powers of two, so that offsets within a tile can be XORed.
  static_assert(kWarpM % 16 == 0 && kWarpN % 16 == 0 && (kWarpN & (kWarpN - 1)) == 0,
                "warps have whole mma tiles");
  static_assert((kM & (kM - 1)) == 0 && (kN & (kN - 1)) == 0 && kStages >= 2,
                "powers of two, and a ring");
};

}  // namespace sparse_autotune
