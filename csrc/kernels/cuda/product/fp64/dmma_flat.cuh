// What dmma_flat_sm90's thread blocks do: equal shares of all stored blocks, wherever rows end.
//
// A share is a run of units, in the order of the stored blocks: 16 k of a block's rows, and one
// more before each block row for what ending it takes. A row that a border between two shares cuts
// is multiplied in pieces, whose sums go to memory; all others are written as they end.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/cuda/device/dmma_ring.cuh"
#include "kernels/cuda/device/load_index.cuh"
#include "kernels/cuda/device/mbarrier.cuh"
#include "kernels/cuda/device/product_arguments.cuh"
#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/device/tma.cuh"
#include "operators/product/product.h"

namespace sparse_autotune {

// A row that a border cuts: first and last border in it; none: row < 0.
struct alignas(16) FlatCut {
  int row, first, last, unused;
};

struct DmmaFlatArguments : ProductArguments {
  CUtensorMap values_map, b_map;
  double* sums;   // of pieces: two for each share
  FlatCut* cuts;  // by the border before a share
  int64_t ldc, c_batch_stride;
  int64_t n;
  unsigned units, shares;
  int rows, columns, strips;  // block rows; tiles from left to right of C; of a block row
  int block_m, block_k, strip_rows;
  int slices;  // units of a block
  bool c_rows, pairs, b_batched;
};

// A place among the units of all rows.
struct FlatPlace {
  int row, unit, begin, end;  // unit: of the row's own; stored blocks of the row
};

// Where the tile of a thread block lies.
struct FlatTilePlace {
  int column, strip, batch;
};
__device__ __forceinline__ FlatTilePlace flat_tile(const DmmaFlatArguments& args, unsigned number) {
  FlatTilePlace at;
  at.column = static_cast<int>(number % static_cast<unsigned>(args.columns));
  number /= static_cast<unsigned>(args.columns);
  at.strip = static_cast<int>(number % static_cast<unsigned>(args.strips));
  at.batch = static_cast<int>(number / static_cast<unsigned>(args.strips));
  return at;
}

__device__ __forceinline__ unsigned border_at(const DmmaFlatArguments& args, unsigned share) {
  return static_cast<unsigned>(uint64_t{args.units} * share / args.shares);
}

// The first unit of a block row.
__device__ __forceinline__ unsigned units_before(const DmmaFlatArguments& args, int row,
                                                 int first_block) {
  return static_cast<unsigned>(first_block) * args.slices + row;
}

// The two ends of a share: by all threads, which divide the rows that are left.
template <typename Tile>
__device__ __forceinline__ void find_ends(const DmmaFlatArguments& args, unsigned share,
                                          FlatPlace (&ends)[2]) {
  int low[2] = {0, 0}, high[2] = {args.rows + 1, args.rows + 1};
  const unsigned units[2] = {border_at(args, share), border_at(args, share + 1)};
  while (high[0] - low[0] > 1 || high[1] - low[1] > 1) {
    bool before[2];
    int step[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      step[i] = (high[i] - low[i] + Tile::kLaunched - 1) / Tile::kLaunched;
      const int probe = low[i] + (static_cast<int>(threadIdx.x) + 1) * step[i];
      before[i] = probe < high[i];
      const int first =
          load_narrow_index(args.crow_indices, before[i] ? probe : 0, args.wide_indices);
      before[i] = before[i] && units_before(args, probe, first) <= units[i];
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      low[i] += __syncthreads_count(before[i]) * step[i];
      high[i] = min(low[i] + step[i], high[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    FlatPlace& at = ends[i];
    at.row = low[i];
    at.begin = load_narrow_index(args.crow_indices, low[i], args.wide_indices);
    at.end = load_narrow_index(args.crow_indices, min(low[i] + 1, args.rows), args.wide_indices);
    const unsigned behind = units[i] - units_before(args, at.row, at.begin);
    at.unit = behind > 1 ? static_cast<int>(behind) - 1 : 0;
  }
}

// Tells the second kernel whether a share's first border cuts a row, and which borders do.
__device__ __forceinline__ void note_cut(const DmmaFlatArguments& args, unsigned share,
                                         const FlatPlace& from) {
  FlatCut cut{-1, 0, 0, 0};
  if (from.unit > 0) {
    // Borders behind the row's first unit of a block, and before the next row.
    const uint64_t low = units_before(args, from.row, from.begin) + 2,
                   high = units_before(args, from.row + 1, from.end);
    cut.row = from.row;
    cut.first = static_cast<int>((low * args.shares + args.units - 1) / args.units);
    cut.last = static_cast<int>((high * args.shares + args.units - 1) / args.units) - 1;
  }
  *reinterpret_cast<int4*>(args.cuts + share) = make_int4(cut.row, cut.first, cut.last, 0);
}

// The column indices (and positions) of a share's blocks, a warp's lanes 64 ahead.
template <bool kTransposedA>
struct BlockWindow {
  const DmmaFlatArguments& args;
  const int last_block;
  int block;
  int first = block;
  int columns = fetch(args.col_indices, first), next_columns = fetch(args.col_indices, first + 32);
  int places = kTransposedA ? fetch(args.positions, first) : 0;
  int next_places = kTransposedA ? fetch(args.positions, first + 32) : 0;

  __device__ __forceinline__ int fetch(const void* indices, int at) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    return at + lane < last_block ? load_narrow_index(indices, at + lane, args.wide_indices) : 0;
  }
  // Of the block, by all lanes.
  __device__ __forceinline__ int column() const {
    return __shfl_sync(~0u, columns, (block - first) % 32);
  }
  __device__ __forceinline__ int stored() const {
    return kTransposedA ? __shfl_sync(~0u, places, (block - first) % 32) : block;
  }
  __device__ __forceinline__ void advance() {
    ++block;
    if (block - first < 32) return;
    first = block;
    columns = next_columns;
    next_columns = fetch(args.col_indices, first + 32);
    if constexpr (kTransposedA) {
      places = next_places;
      next_places = fetch(args.positions, first + 32);
    }
  }
};

// The warp that copies. Lanes up to 7 issue the copies of A, 8 to 15 those of B.
template <typename Tile>
__device__ __forceinline__ void produce_share(const DmmaFlatArguments& args,
                                              const DmmaRing<Tile>& ring,
                                              const FlatPlace (&ends)[2]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const unsigned tiles = gridDim.x / args.shares;
  const unsigned share = blockIdx.x / tiles;
  const FlatTilePlace tile = flat_tile(args, blockIdx.x % tiles);
  const FlatPlace &from = ends[0], &to = ends[1];
  if (lane == 0 && blockIdx.x % tiles == 0) note_cut(args, share, from);

  RingPlace<Tile::kStages> place;
  int slice = from.unit % args.slices, rows_from = from.row;
  const int last_block = to.begin + (to.unit + args.slices - 1) / args.slices;
  const int n0 = tile.column * Tile::kN, row_in_block = tile.strip * args.strip_rows;
  const auto fetch_ends = [&](int first) {
    return load_narrow_index(args.crow_indices, min(first + lane + 1, args.rows),
                             args.wide_indices);
  };
  BlockWindow<Tile::kTransposedA> window{args, last_block, from.begin + from.unit / args.slices};
  int row_ends = fetch_ends(rows_from), following_ends = fetch_ends(rows_from + 32);
  const int batch = args.b_batched ? tile.batch : 0;
  const int boxes_a = Tile::kTransposedA ? (args.strip_rows + 15) / 16 : 1;
  constexpr int kBoxesB = Tile::kRowMajorB ? Tile::kN / 16 : 1;
  const int box_b = lane - 8;
  const bool copies_a = lane < boxes_a, copies_b = box_b >= 0 && box_b < kBoxesB;
  const uint32_t bytes = Tile::kBytesB + (Tile::kTransposedA ? boxes_a * 16 * Tile::kUnitLine
                                                             : args.strip_rows * Tile::kUnitLine);

#pragma unroll 1
  for (int row = from.row, begin = from.begin; row < to.row || (row == to.row && to.unit > 0);
       ++row) {
    if (row - rows_from == 32) {
      rows_from = row;
      row_ends = following_ends;
      following_ends = fetch_ends(row + 32);
    }
    const int end = __shfl_sync(~0u, row_ends, row - rows_from);
    const int first = row == from.row ? from.unit : 0;
    const int all = (end - begin) * args.slices, last = row == to.row ? to.unit : all;
    begin = end;
    const uint32_t of_row = (first > 0 ? kStepFromBefore : 0) | (last < all ? kStepGoesOn : 0);
    int unit = first;
#pragma unroll 1
    do {
      const bool any = unit < last;
      const uint32_t barrier = ring.full(place.stage);
      const uint32_t stage = ring.address + place.stage * Tile::kStageBytes;
      const int stored = window.stored();
      mbarrier_wait(ring.empty(place.stage), place.parity ^ 1);
      if (lane == 0) {
        const uint32_t what =
            of_row | (any ? kStepMultiplies : 0) | (unit + 1 >= last ? kStepIsLast : 0);
        store_shared(ring.note(place.stage), DmmaStep{row, what});
        mbarrier_arrive_expect(barrier, any ? bytes : 0);
      }
      __syncwarp();
      place.advance();
      if (!any) break;
      if (copies_a) {
        if constexpr (Tile::kTransposedA) {
          tma_load(stage + lane * (16 * Tile::kUnitLine), args.values_map, barrier,
                   row_in_block + lane * 16, stored * args.block_k + slice * Tile::kUnitK);
        } else {
          tma_load(stage, args.values_map, barrier, slice * Tile::kUnitK,
                   stored * args.block_m + row_in_block);
        }
      }
      const int column = window.column();
      if (copies_b) {
        const int k = column * args.block_k + slice * Tile::kUnitK;
        const uint32_t at = stage + Tile::kBytesA + box_b * (16 * Tile::kUnitLine);
        if constexpr (Tile::kRowMajorB) {
          tma_load(at, args.b_map, barrier, n0 + box_b * 16, k, batch);
        } else {
          tma_load(at, args.b_map, barrier, k, n0, batch);
        }
      }
      if (++slice == args.slices) {
        slice = 0;
        window.advance();
      }
    } while (++unit < last);
  }
  mbarrier_wait(ring.empty(place.stage), place.parity ^ 1);
  if (lane == 0) {
    store_shared(ring.note(place.stage), DmmaStep{0, kStepsEnd});
    mbarrier_arrive(ring.full(place.stage));
  }
}

}  // namespace sparse_autotune
