// dmma_sm90's ring in shared memory, and the warp that fills it by TMA.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/cuda/device/dmma_ring.cuh"
#include "kernels/cuda/device/load_index.cuh"
#include "kernels/cuda/device/mbarrier.cuh"
#include "kernels/cuda/device/panel_walk.cuh"
#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/device/tma.cuh"
#include "kernels/cuda/product/fp64/dmma_part.cuh"
#include "operators/product/product.h"

namespace sparse_autotune {

struct TmaArguments {
  CUtensorMap values, b;
  DmmaArguments rest;
};

// A step is 16 k. Columns of C, rows that are present or absent together; slices of a block that
// are multiplied together: two, or each by itself.
template <int kSide, int kTogether, bool kTransposed, bool kRowMajor>
struct DmmaTmaTile {
  static constexpr int kM = 64, kWarpN = 32, kWarps = 4, kThreads = 32 * kWarps;
  static constexpr int kN = kWarpN * kWarps, kGranule = kSide, kGranules = kM / kGranule;
  static constexpr bool kTransposedA = kTransposed, kRowMajorB = kRowMajor;
  static constexpr int kSlices = kTogether, kUnits = 2 / kSlices, kUnitK = 8 * kSlices;
  static constexpr int kStages = 4, kNoteBytes = 16, kResident = 2;
  static constexpr int kLaunched = kThreads + 128;  // registers are given up by warpgroups
  static constexpr int kGranuleBytes = kGranule * kUnitK * 8;
  static constexpr int kBoxRows = kSlices == 2 ? 16 : 8;  // of a transposed A
  static constexpr int kBytesA = kM * kUnitK * 8, kBytesB = kN * kUnitK * 8;
  static constexpr int kUnitBytes = kBytesA + kBytesB, kStageBytes = kUnits * kUnitBytes;
  static constexpr int kSharedBytes =
      kSwizzleAlignment + sizeof(DmmaRingLayout<kStages, kStageBytes, kNoteBytes>);
  static constexpr int kTilesN = kM / 8, kTilesM = kWarpN / 16, kSums = kTilesN * kTilesM * 4;
  static_assert(kSharedBytes <= 227 * 1024 / kResident - 1024,
                "so many thread blocks do not fit a multiprocessor");
};

// What comes with a step: which granules its slices have, and of which tile they are.
struct StepNote {
  uint32_t masks[2];
  uint32_t tile;  // kNoTile: there is no further step
  uint32_t row;   // of tiles, as the row order's entry has it; its top bit: the tile's last step
};
constexpr uint32_t kNoTile = ~0u, kLastStep = 1u << 31;

// For a whole warp. One lane reads, the one that hands the step back: racecheck does not see that
// it may speak for the others.
__device__ __forceinline__ StepNote load_note(uint32_t from) {
  const StepNote note = threadIdx.x % 32 == 0 ? load_shared<StepNote>(from) : StepNote{};
  const auto of_first = [](uint32_t word) { return __shfl_sync(~0u, word, 0); };
  return {
      {of_first(note.masks[0]), of_first(note.masks[1])}, of_first(note.tile), of_first(note.row)};
}

// The slices of a tile's block columns, in order. 32 columns are fetched at a time, and 32 ahead.
template <typename Tile>
class SliceWalk {
 public:
  // Slices that are multiplied together: which granules have them, of which k; `ends`: they are the
  // last of their column.
  struct Unit {
    uint32_t mask;
    int k, slice;
    bool ends;
  };

  __device__ __forceinline__ SliceWalk(const DmmaArguments& args, const DmmaPart& part)
      : at_(part.begin), end_(part.begin + part.length) {
    all_ = (1 << (part.rows / Tile::kGranule)) - 1;
    columns_ = fetch(args, at_);
    following_ = fetch(args, at_ + 32);
  }

  __device__ __forceinline__ bool done() const { return at_ >= end_; }

  __device__ __forceinline__ Unit next(const DmmaArguments& args) {
    if (done()) return {};
    const int column = __shfl_sync(~0u, columns_.x, in_32_);
    const auto mask = static_cast<uint32_t>(__shfl_sync(~0u, columns_.y, in_32_));
    const Unit unit{mask, column * args.block_k + slice_ * 8, slice_,
                    slice_ + Tile::kSlices >= args.slices};
    slice_ += Tile::kSlices;
    if (unit.ends) {
      slice_ = 0;
      ++at_;
      if (++in_32_ == 32) {
        in_32_ = 0;
        columns_ = following_;
        following_ = fetch(args, at_ + 32);
      }
    }
    return unit;
  }

 private:
  // The lane's column of those from `first` on, and the granules that have a block in it.
  __device__ __forceinline__ int2 fetch(const DmmaArguments& args, int first) const {
    const int i = first + static_cast<int>(threadIdx.x) % 32;
    if (args.columns != nullptr) return load_group_column(args.columns, i, end_);
    return i < end_ ? make_int2(load_narrow_index(args.col_indices, i, args.wide_indices), all_)
                    : int2{};
  }

  int at_, end_, all_, in_32_ = 0, slice_ = 0;
  int2 columns_, following_;
};

// Where a granule's next blocks lie in values: of A^T fetched ahead of their use.
template <typename Tile>
struct StoredBlocks {
  static constexpr int kAhead = Tile::kTransposedA ? Tile::kUnits + 2 : Tile::kUnits;
  const DmmaArguments& args;
  int cursor;
  int next[kAhead];

  __device__ __forceinline__ StoredBlocks(const DmmaArguments& arguments, int first)
      : args(arguments), cursor(first) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) next[i] = place(i);
  }
  __device__ __forceinline__ int place(int i) const {
    if constexpr (!Tile::kTransposedA) return cursor + i;
    return load_narrow_index(args.positions, min(cursor + i, args.blocks - 1), args.wide_indices);
  }
  __device__ __forceinline__ void advance() {
    ++cursor;
#pragma unroll
    for (int i = 0; i + 1 < kAhead; ++i) next[i] = next[i + 1];
    next[kAhead - 1] = place(kAhead - 1);
  }
};

// The warp that copies. Lane 8 * i + j issues the copy of granule j of a step's unit i, lane 16 + i
// that of B's lines.
template <typename Tile>
__device__ __forceinline__ void produce_steps(const TmaArguments& args,
                                              const DmmaRing<Tile>& ring) {
  const DmmaArguments& rest = args.rest;
  const int lane = threadIdx.x % 32, granule = lane % 8;
  const bool second = lane < 16 ? lane >= 8 : lane == 17;  // of a step's units
  const bool copies_a = lane < 8 * Tile::kUnits;
  const bool copies_b = lane >= 16 && lane < 16 + Tile::kUnits;
  const bool grouped = rest.columns != nullptr;
  RingPlace<Tile::kStages> place;
#pragma unroll 1
  for (unsigned turn = 0;; ++turn) {
    const unsigned tile = __shfl_sync(~0u, lane == 0 ? next_tile(rest.panels, turn) : 0, 0);
    if (tile >= rest.panels.tiles) break;
    const DmmaPart part = find_dmma_part<Tile>(rest, tile);
    // The granule's next block, of which rows.
    const int row = grouped ? 0 : part.m0 + granule * Tile::kGranule;
    int cursor = part.begin;
    if (grouped) {
      cursor = load_narrow_index(rest.crow_indices, min(part.block_row + granule, rest.block_rows),
                                 rest.wide_indices);
    }
    StoredBlocks<Tile> stored(rest, cursor);
    SliceWalk<Tile> walk(rest, part);
    const uint32_t own = static_cast<uint32_t>(part.block_row) / rest.group;
    const auto n = static_cast<int>(part.n0);
    const int batch = rest.b_batch_stride != 0 ? static_cast<int>(part.batch) : 0;
#pragma unroll 1
    do {
      using Unit = typename SliceWalk<Tile>::Unit;
      const Unit one = walk.next(rest);
      const Unit two = Tile::kUnits == 2 ? walk.next(rest) : Unit{};
      const Unit mine = second ? two : one;
      const auto bytes_of = [](const Unit& unit) {
        return unit.mask == 0 ? 0 : Tile::kBytesB + __popc(unit.mask) * Tile::kGranuleBytes;
      };
      const int past_one = one.ends ? static_cast<int>(one.mask >> granule & 1) : 0;
      const int past_two = two.ends ? static_cast<int>(two.mask >> granule & 1) : 0;
      const uint32_t barrier = ring.full(place.stage);
      const uint32_t to =
          ring.address + place.stage * Tile::kStageBytes + (second ? Tile::kUnitBytes : 0);
      mbarrier_wait(ring.empty(place.stage), place.parity ^ 1);
      if (lane == 0) {
        const StepNote note{{one.mask, two.mask}, tile, own | (walk.done() ? kLastStep : 0)};
        store_shared(ring.note(place.stage), note);
        mbarrier_arrive_expect(barrier, bytes_of(one) + bytes_of(two));
      }
      __syncwarp();
      if (copies_a && (mine.mask >> granule & 1) != 0) {
        const int before = __popc(mine.mask & ((1u << granule) - 1));
        const uint32_t at = to + before * Tile::kGranuleBytes;
        const int k = mine.slice * 8;
        int block = stored.next[0];
        if (Tile::kUnits == 2 && second && past_one != 0) block = stored.next[Tile::kUnits - 1];
        if constexpr (Tile::kTransposedA) {
          constexpr int kBoxRows = Tile::kBoxRows, kBoxBytes = kBoxRows * Tile::kUnitK * 8;
#pragma unroll
          for (int i = 0; i < Tile::kGranule / kBoxRows; ++i) {
            tma_load(at + i * kBoxBytes, args.values, barrier, row + i * kBoxRows,
                     block * rest.block_k + k);
          }
        } else {
          tma_load(at, args.values, barrier, k, block * rest.block_m + row);
        }
      }
      if (copies_b && mine.mask != 0) {
        if constexpr (Tile::kRowMajorB) {
          tma_load(to + Tile::kBytesA, args.b, barrier, 0, mine.k, n / 16, batch);
        } else {
          tma_load(to + Tile::kBytesA, args.b, barrier, mine.k, n, batch);
        }
      }
      if (past_one != 0) stored.advance();
      if (past_two != 0) stored.advance();
      place.advance();
    } while (!walk.done());
  }
  mbarrier_wait(ring.empty(place.stage), place.parity ^ 1);
  if (lane == 0) {
    store_shared(ring.note(place.stage), StepNote{{}, kNoTile, 0});
    mbarrier_arrive(ring.full(place.stage));
  }
}

}  // namespace sparse_autotune
