// The warp that copies for sampled_dmma_sm90.
//
// A thread block's share are stored blocks that follow each other. Neighbours of one block row make
// a tile: their rows of C, and beside each other the rows of B of each.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/cuda/device/dmma_ring.cuh"
#include "kernels/cuda/device/load_index.cuh"
#include "kernels/cuda/device/mbarrier.cuh"
#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/device/tma.cuh"

namespace sparse_autotune {

struct SampledDmmaArguments {
  CUtensorMap c, b;
  const void* crow_indices;
  const void* col_indices;
  double* sampled;   // or sums of each part of the terms
  int64_t elements;  // of one of these
  int nnzb, shares, parts, block_rows, block_m, block_k;
  int strips_m, strips_k;      // tiles of a block that is larger than one
  int strip_rows, strip_cols;  // rows of C, and rows of B of each block, in a tile
  int together;                // blocks of a tile, at most
  int steps, batch;            // of 16 terms, for each matrix of the batch
  bool wide_indices, c_batched, b_batched;
};

// Notes of steps carry the tile's first block and, above the flags, how many it has.
constexpr int kStepBlocksAt = 8;

// The block row of a stored block, by a warp: as many rows as begin at or before it lie above.
__device__ __forceinline__ int find_block_row(const SampledDmmaArguments& args, int block) {
  return indices_below(args.crow_indices, 1, args.block_rows - 1, block + 1, args.wide_indices);
}

// Lanes up to 7 issue the copies of C, 8 to 15 those of B.
template <typename Tile>
__device__ __forceinline__ void produce_sampled(const SampledDmmaArguments& args,
                                                const DmmaRing<Tile>& ring) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const unsigned tiles = static_cast<unsigned>(args.strips_m * args.strips_k);
  const unsigned share = blockIdx.x / tiles / args.parts, strip = blockIdx.x % tiles;
  const int strip_m = static_cast<int>(strip) / args.strips_k,
            strip_k = static_cast<int>(strip) % args.strips_k;
  int block = static_cast<int>(uint64_t{static_cast<unsigned>(args.nnzb)} * share / args.shares);
  const int stop =
      static_cast<int>(uint64_t{static_cast<unsigned>(args.nnzb)} * (share + 1) / args.shares);
  int row = find_block_row(args, block);
  int end = load_narrow_index(args.crow_indices, row + 1, args.wide_indices);
  const auto fetch = [&](int first) {
    return first + lane < stop
               ? load_narrow_index(args.col_indices, first + lane, args.wide_indices)
               : 0;
  };
  int window = block, columns = fetch(window), following = fetch(window + 32);
  const int boxes_c = Tile::kTransposedA ? (args.strip_rows + 15) / 16 : 1;
  const int boxes_b = Tile::kRowMajorB ? args.strip_cols / 16 : 1;  // of each block
  const int bytes_c = Tile::kTransposedA ? boxes_c * 2048 : args.strip_rows * Tile::kUnitLine;
  const int box_b = lane - 8, block_b = box_b >= 0 ? box_b / boxes_b : 0;
  const uint32_t at_b =
      Tile::kBytesA + (Tile::kRowMajorB ? box_b * 2048 : box_b * args.strip_cols * Tile::kUnitLine);
  // This part of the terms: steps, and where the first one lies.
  const int all = args.steps * args.batch, part = static_cast<int>(blockIdx.x / tiles % args.parts);
  const int first = static_cast<int>(int64_t{all} * part / args.parts);
  const int steps = static_cast<int>(int64_t{all} * (part + 1) / args.parts) - first;
  RingPlace<Tile::kStages> place;
#pragma unroll 1
  while (block < stop) {
    while (block >= end) {
      end = load_narrow_index(args.crow_indices, ++row + 1, args.wide_indices);
    }
    const int count = min(min(end, stop) - block, args.together);
    const int in_window = block - window + block_b;
    const int near = __shfl_sync(~0u, columns, in_window % 32);
    const int far = __shfl_sync(~0u, following, in_window % 32);
    const int k0 = (in_window < 32 ? near : far) * args.block_k + strip_k * args.strip_cols +
                   (Tile::kRowMajorB ? (box_b - block_b * boxes_b) * 16 : 0);
    const int m0 = row * args.block_m + strip_m * args.strip_rows;
    const bool copies_c = lane < boxes_c, copies_b = box_b >= 0 && box_b < count * boxes_b;
    const uint32_t bytes = bytes_c + count * args.strip_cols * Tile::kUnitLine;
    const uint32_t what = kStepMultiplies | static_cast<uint32_t>(count) << kStepBlocksAt;
    int matrix = first / args.steps, in_matrix = first % args.steps;
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      const uint32_t barrier = ring.full(place.stage);
      const uint32_t stage = ring.address + place.stage * Tile::kStageBytes;
      mbarrier_wait(ring.empty(place.stage), place.parity ^ 1);
      if (lane == 0) {
        store_shared(ring.note(place.stage),
                     DmmaStep{block, what | (step + 1 == steps ? kStepIsLast : 0)});
        mbarrier_arrive_expect(barrier, bytes);
      }
      __syncwarp();
      const int term = in_matrix * Tile::kUnitK;
      if (copies_c) {
        const int of = args.c_batched ? matrix : 0;
        if constexpr (Tile::kTransposedA) {
          tma_load(stage + lane * 2048, args.c, barrier, m0 + lane * 16, term, of);
        } else {
          tma_load(stage, args.c, barrier, term, m0, of);
        }
      }
      if (copies_b) {
        const int of = args.b_batched ? matrix : 0;
        if constexpr (Tile::kRowMajorB) {
          tma_load(stage + at_b, args.b, barrier, k0, term, of);
        } else {
          tma_load(stage + at_b, args.b, barrier, term, k0, of);
        }
      }
      if (++in_matrix == args.steps) {
        in_matrix = 0;
        ++matrix;
      }
      place.advance();
    }
    block += count;
    if (block - window >= 32) {
      window += 32;
      columns = following;
      following = fetch(window + 32);
    }
  }
  mbarrier_wait(ring.empty(place.stage), place.parity ^ 1);
  if (lane == 0) {
    store_shared(ring.note(place.stage), DmmaStep{0, kStepsEnd});
    mbarrier_arrive(ring.full(place.stage));
  }
}

}  // namespace sparse_autotune
