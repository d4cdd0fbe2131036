// What the kernels of dmma_sm80 and dmma_sm90 share: tiles of C and how they are multiplied.
//
// A tile's rows come in granules that are present or absent together: those of a block row, where a
// tile has several. It walks the block columns in which any of them has a block.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/device/dmma.cuh"
#include "kernels/cuda/device/load_index.cuh"
#include "kernels/cuda/device/panel_walk.cuh"
#include "kernels/cuda/device/product_arguments.cuh"
#include "operators/product/product.h"

namespace sparse_autotune {

struct DmmaArguments : ProductArguments {
  const GroupColumn* columns;  // null: a tile belongs to one block row
  Panels panels;               // its order: of groups, or of block rows
  int64_t n, ldb, ldc, b_batch_stride, c_batch_stride;
  int m, block_m, block_k, block_rows, blocks;
  int group, strips;                     // block rows of a tile, or tiles of a block row
  int slices;                            // of a block's row
  uint32_t line_a, line_b, block_bytes;  // bytes between lines of a block or of B, and of a block
  bool c_rows;
  bool chunks, pairs;  // values and B, or C, are aligned to 16 bytes
};

// What a thread block computes.
struct DmmaPart {
  int row0, rows;     // of C
  int block_row, m0;  // its first block row, and where in it
  int begin, length;  // stored blocks of the block row, or columns of the group
  unsigned batch;
  int columns;
  int64_t n0;
};

// All but the stored blocks. `row`: of tiles, as the row order's entry has it.
template <typename Tile>
__device__ __forceinline__ void place_dmma_part(const DmmaArguments& args, const TilePlace& at,
                                                int row, DmmaPart& part) {
  part.m0 = static_cast<int>(at.row % static_cast<unsigned>(args.strips)) * Tile::kM;
  part.block_row = row * args.group;
  part.row0 = part.block_row * args.block_m + part.m0;
  part.rows = args.columns == nullptr ? min(args.block_m - part.m0, Tile::kM)
                                      : min(args.m - part.row0, args.group * args.block_m);
  part.batch = at.batch;
  part.n0 = int64_t{at.column} * Tile::kN;
  part.columns = static_cast<int>(min(args.n - part.n0, static_cast<int64_t>(Tile::kN)));
}

template <typename Tile>
__device__ __forceinline__ DmmaPart find_dmma_part(const DmmaArguments& args, unsigned number) {
  const TilePlace at = locate(args.panels, number);
  const OrderedRow row = row_of_order(args, at.row / static_cast<unsigned>(args.strips));
  DmmaPart part;
  part.begin = row.begin;
  part.length = row.end - row.begin;
  place_dmma_part<Tile>(args, at, row.row, part);
  return part;
}

// Multiplies a slice, or two. `b`: the warp's columns as multiply_fp64 takes them. `slot`: the
// first granule that is there; load_a(granule, tile, a) loads the lane's of its `tile`th 8 rows.
// Granules lie one behind the other, so that the next one's first fragment is loaded before it is
// known which it is.
template <typename Tile, typename Load>
__device__ __forceinline__ void multiply_granules(
    double (&sum)[Tile::kTilesN][Tile::kTilesM][4],
    const double (&b)[Tile::kTilesM][4 * Tile::kSlices], const char* slot, uint32_t mask,
    const Load& load_a) {
  constexpr int kTiles = Tile::kGranule / 8;
  double a[2 * Tile::kSlices];
  load_a(slot, 0, a);
  const auto multiply = [&]<int kGranule>() {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      double now[2 * Tile::kSlices];
#pragma unroll
      for (int i = 0; i < 2 * Tile::kSlices; ++i) now[i] = a[i];
      const bool more = tile + 1 < kTiles;
      load_a(more ? slot : slot + Tile::kGranuleBytes, more ? tile + 1 : 0, a);
#pragma unroll
      for (int i = 0; i < Tile::kTilesM; ++i) {
        multiply_fp64(sum[kGranule % Tile::kGranules * kTiles + tile][i], b[i], now);
      }
    }
    slot += Tile::kGranuleBytes;
  };
  if constexpr (Tile::kGranules <= 2) {
    if ((mask & 1) != 0) multiply.template operator()<0>();
    if (Tile::kGranules == 2 && (mask & 2) != 0) multiply.template operator()<1>();
  } else {
    // Jumps: of a chain of conditions the compiler would make predicates, with which blocks of 8
    // took 1.4 to 1.6 times as long.
#pragma unroll 1
    for (; mask != 0; mask &= mask - 1) {
      switch (__ffs(static_cast<int>(mask))) {
#define GRANULE(i)                     \
  case (i) + 1:                        \
    multiply.template operator()<i>(); \
    break
        GRANULE(0);
        GRANULE(1);
        GRANULE(2);
        GRANULE(3);
        GRANULE(4);
        GRANULE(5);
        GRANULE(6);
        GRANULE(7);
#undef GRANULE
        default:
          __builtin_unreachable();
      }
    }
  }
}

}  // namespace sparse_autotune
