// What sampled_union_sm90's kernels work on: its arguments, its shared memory.
//
// A region is a group of block rows against panels of 64 of values' columns. Its stored blocks are
// cut into units, which warps hold the sums of.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/device/mbarrier.cuh"
#include "kernels/cuda/device/named_barrier.cuh"
#include "kernels/cuda/device/tma.cuh"

namespace sparse_autotune {

constexpr int kPanelWidth = 64;  // rows or columns of values in a box
constexpr int kBoxTerms = 32;    // terms of the sums in a stage of the ring
constexpr int kBoxBytes = kPanelWidth * kBoxTerms * 2;
constexpr int kRingBoxes = 54;
// Of a step, about, in cycles: what it takes to fetch a panel; of a unit, see below.
constexpr int kPanelCost = 64;
constexpr int kMaxStages = 8, kMaxRows = 512;  // of a group
constexpr int kMaxGroupRows = kMaxRows / 16;   // block rows
constexpr int kMostBoxes = kRingBoxes / 2;     // in a stage, so that there are two

// A unit's place: in 16s from the region's first row and from its first panel's first column; the
// number of its block; and where in the block it lies.
struct SampledUnit {
  int16_t row, column;
  int32_t block;
  int32_t within, unused;
};

// What a thread block knows of its region, in shared memory.
struct SampledUnionNotes {
  int tile;           // the region's number among all, in the first round
  int regions;        // of the group
  int panels, units;  // of the region
  int is_last;        // whether all other parts of its sums are there
  int panel[kMostBoxes], row_count[kMaxGroupRows];
};

// Warps that multiply, units of a warp, and a unit's sides in 16s.
template <int kConsumerWarps, int kSlotsEach, int kTallness, int kWidth>
struct SampledUnionTile {
  static constexpr int kWarps = kConsumerWarps, kSlots = kSlotsEach;
  static constexpr int kTilesM = kTallness, kTilesK = kWidth;
  static constexpr int kUnitM = 16 * kTilesM, kUnitK = 16 * kTilesK;
  static constexpr int kConsumers = kWarps * 32, kThreads = kConsumers + 128;
  // What is launched is divided up anew: whole warpgroups, and registers in units of 8.
  static constexpr int kLaunchRegisters = 65536 / kThreads / 8 * 8;
  static constexpr int kProducerRegisters = kWarps == 8 ? 40 : 32;
  static constexpr int kConsumerRegisters =
      (kLaunchRegisters * kThreads - kProducerRegisters * 128) / kConsumers / 8 * 8;
  static constexpr int kUnits = kWarps * kSlots;
  static constexpr int kUnitCost = 7 * (kTilesM + kTilesK);
  static constexpr int kUnitSums = 8 * kTilesM * kTilesK;  // of a lane
  static constexpr int kPartFloats = kConsumers * kSlots * kUnitSums;
  static_assert(kWarps % 4 == 0, "whole warpgroups");

  // Of the warps that multiply.
  static __device__ __forceinline__ void sync_consumers() {
    __syncwarp();  // what follows is for whole warps
    barrier_sync<kConsumers>(1);
  }
};

struct SampledUnionArguments {
  CUtensorMap c, b;
  const void* crow_indices;
  const void* col_indices;
  void* sampled;
  float* partials;     // see sampled_union_consumer.cuh
  unsigned* counters;  // of regions; 0 between launches
  int block_rows, block_cols, block_m, block_k;
  int group_rows, group_regions, parts;  // block rows and regions of a group; parts of a sum
  int steps, matrix_steps;               // stages in a sum, and in that of one matrix of the batch
  bool wide_indices, c_batched, b_batched;
};

using SampledUnionPlace = RingPlace<kMaxStages>;

// What a thread block keeps in shared memory, from a multiple of kSwizzleAlignment on.
template <typename Tile>
struct SampledUnionLayout {
  std::byte ring[kRingBoxes][kBoxBytes];
  SampledUnit units[Tile::kUnits];
  SampledUnionNotes notes;
  RingBarriers<kMaxStages> barriers;
  Barrier found, copied;
};

// The same by address, and what is read and written as it is.
template <typename Tile>
struct SampledUnionShared : RingBarriersAt<kMaxStages> {
  using Layout = SampledUnionLayout<Tile>;
  static constexpr int kBytes = kSwizzleAlignment + sizeof(Layout);
  static_assert(kBytes <= 227 * 1024, "more shared memory than a thread block of Hopper may have");

  uint32_t ring;
  Layout* layout;

  __device__ __forceinline__ explicit SampledUnionShared(char* memory) {
    const auto begin = static_cast<uint32_t>(__cvta_generic_to_shared(memory));
    ring = align_swizzled(begin);
    layout = reinterpret_cast<Layout*>(memory + (ring - begin));
    this->barriers = ring + offsetof(Layout, barriers);
  }
  __device__ __forceinline__ SampledUnit* units() const { return layout->units; }
  __device__ __forceinline__ SampledUnionNotes& notes() const { return layout->notes; }
  // Of a round's region: the threads that multiply have found it; the warp that copies needs its
  // notes no more. Not barriers of threads (synccheck wants those in one place of the program), and
  // every thread arrives (racecheck does not see that one may speak for others).
  __device__ __forceinline__ uint32_t found() const { return ring + offsetof(Layout, found); }
  __device__ __forceinline__ uint32_t copied() const { return ring + offsetof(Layout, copied); }
  __device__ __forceinline__ void init_round_barriers() const {
    mbarrier_init(found(), Tile::kConsumers);
    mbarrier_init(copied(), 32);
  }
  // The ring's. `again`: nobody uses them, and they may be in any phase.
  __device__ __forceinline__ void init_barriers(bool again) const {
    for (int i = 0; i < kMaxStages; ++i) {
      if (again) mbarrier_invalidate(full(i));
      if (again) mbarrier_invalidate(empty(i));
      mbarrier_init(full(i), 1);
      mbarrier_init(empty(i), Tile::kWarps);
    }
    mbarrier_init_fence();
  }
};

}  // namespace sparse_autotune
