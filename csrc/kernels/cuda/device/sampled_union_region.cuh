// Finds a region of sampled_union_sm90: which strips of columns it has, and its units.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/load_index.cuh"
#include "kernels/cuda/device/sampled_union_tile.cuh"
#include "kernels/cuda/device/tma.cuh"

namespace sparse_autotune {

struct SampledRegion {
  int first_row, rows;  // block rows
  int strips, units;    // strips: 0 if there is no such region
  int regions;          // of the group
};

// Where strips are counted, in the ring: a number each.
struct StripCounts {
  int* blocks;     // in a strip
  int* number_of;  // of a strip in its region, -1: it is of another
  int* of_region;  // a region's strips and, behind those of all, a region's blocks
};

// By one warp: cuts the strips in which the group has blocks into args.pieces regions of about
// equal cost: so much for a strip, which is fetched, and for a block, which is multiplied. The
// strips of region `wanted` get their numbers in it. False: some region has more than fits.
template <typename Tile>
__device__ __forceinline__ bool cut_evenly(const SampledUnionArguments& args,
                                           const SampledUnionShared<Tile>& shared,
                                           const StripCounts& counts, int strip_cost,
                                           int block_cost, int most_blocks, int most_strips,
                                           int wanted) {
  const int lane = threadIdx.x % 32;
  for (int i = lane; i < 2 * args.pieces; i += 32) counts.of_region[i] = 0;
  int cost = 0;
  for (int strip = lane; strip < args.strips; strip += 32) {
    const int here = counts.blocks[strip];
    counts.number_of[strip] = -1;
    if (here > 0) cost += strip_cost + block_cost * here;
  }
  cost = __reduce_add_sync(~0u, cost);
  const float pieces_each = static_cast<float>(args.pieces) / static_cast<float>(max(cost, 1));
  int before = 0;
  int strips_of_wanted = 0;
  for (int first = 0; first < args.strips; first += 32) {
    const int strip = first + lane, here = strip < args.strips ? counts.blocks[strip] : 0;
    const int share = here > 0 ? strip_cost + block_cost * here : 0;
    int up_to = share;
#pragma unroll
    for (int i = 1; i < 32; i *= 2) {
      const int below = __shfl_up_sync(~0u, up_to, i);
      if (lane >= i) up_to += below;
    }
    const float middle = static_cast<float>(before + up_to) - 0.5f * static_cast<float>(share);
    const int region = min(static_cast<int>(middle * pieces_each), args.pieces - 1);
    if (here > 0) {
      atomicAdd(counts.of_region + region, 1);
      atomicAdd(counts.of_region + args.pieces + region, here);
    }
    const bool mine = here > 0 && region == wanted;
    const uint32_t of_wanted = __ballot_sync(~0u, mine);
    const int number = strips_of_wanted + __popc(of_wanted & ((1u << lane) - 1));
    if (mine && number < most_strips) {
      counts.number_of[strip] = number;
      shared.strips[number] = strip;
    }
    strips_of_wanted += __popc(of_wanted);
    before += __shfl_sync(~0u, up_to, 31);
  }
  __syncwarp();
  bool fits = true;
  for (int i = lane; i < args.pieces; i += 32) {
    fits = fits && counts.of_region[i] <= most_strips &&
           counts.of_region[args.pieces + i] <= most_blocks;
  }
  if (lane == 0) {
    shared.found[0] = strips_of_wanted;
    shared.found[1] = cost > 0 ? args.pieces : 0;
  }
  return __all_sync(~0u, fits);
}

// By one thread: the same from left to right, each region as large as fits.
template <typename Tile>
__device__ __forceinline__ void cut_greedily(const SampledUnionArguments& args,
                                             const SampledUnionShared<Tile>& shared,
                                             const StripCounts& counts, int most_blocks,
                                             int most_strips, int wanted) {
  int region = 0, strips = 0, blocks = 0, strips_of_wanted = 0;
  for (int strip = 0; strip < args.strips; ++strip) {
    const int here = counts.blocks[strip];
    counts.number_of[strip] = -1;
    if (here == 0) continue;
    if (strips == most_strips || blocks + here > most_blocks) {
      ++region;
      strips = blocks = 0;
    }
    if (region == wanted) {
      counts.number_of[strip] = strips;
      shared.strips[strips] = strip;
      strips_of_wanted = strips + 1;
    }
    ++strips;
    blocks += here;
  }
  shared.found[0] = strips_of_wanted;
  shared.found[1] = region + 1;
}

// By the warps that multiply: region `wanted` of a group. What it found is in shared memory too,
// units in the order of their rows. The ring must be idle; it holds counts meanwhile.
template <typename Tile>
__device__ __forceinline__ SampledRegion find_region(const SampledUnionArguments& args,
                                                     const SampledUnionShared<Tile>& shared,
                                                     int group, int wanted) {
  constexpr int kWarps = Tile::kWarps;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  StripCounts counts;
  counts.blocks = reinterpret_cast<int*>(shared.ring_memory);
  counts.number_of = counts.blocks + args.strips;
  counts.of_region = counts.number_of + args.strips;
  SampledRegion region{};
  region.first_row = group * args.group_rows;
  region.rows = min(args.group_rows, args.block_rows - region.first_row);
  const auto row_begin = [&](int row) {
    return load_narrow_index(args.crow_indices, region.first_row + row, args.wide_indices);
  };
  const auto strip_of = [&](int block) {
    return load_narrow_index(args.col_indices, block, args.wide_indices) * args.block_k /
           kStripWidth;
  };

  Tile::sync_consumers();
  for (int i = threadIdx.x; i < args.strips; i += Tile::kConsumers) counts.blocks[i] = 0;
  Tile::sync_consumers();
  for (int row = warp; row < region.rows; row += kWarps) {
    const int end = row_begin(row + 1);
    for (int i = row_begin(row) + lane; i < end; i += 32) atomicAdd(counts.blocks + strip_of(i), 1);
  }
  Tile::sync_consumers();
  const int across = args.block_k / Tile::kUnitK;
  const int units_each = args.block_m / Tile::kUnitM * across;
  if (warp == 0) {
    const int most_blocks = Tile::kUnits / units_each;
    const int most_strips =
        args.stage_boxes - (args.group_rows * args.block_m + kStripWidth - 1) / kStripWidth;
    const auto cut = [&](int strip_cost, int block_cost) {
      return cut_evenly(args, shared, counts, strip_cost, block_cost, most_blocks, most_strips,
                        wanted);
    };
    if (!cut(kStripCost, Tile::kUnitCost * units_each) && !cut(0, 1) && lane == 0) {
      cut_greedily(args, shared, counts, most_blocks, most_strips, wanted);
    }
  }
  Tile::sync_consumers();
  region.strips = shared.found[0];
  region.regions = shared.found[1];

  // Rows have their blocks in the region next to each other.
  for (int row = warp; row < region.rows; row += kWarps) {
    const int end = row_begin(row + 1);
    int count = 0;
    for (int i = row_begin(row) + lane; i < end; i += 32) {
      count += counts.number_of[strip_of(i)] >= 0 ? 1 : 0;
    }
    count = __reduce_add_sync(~0u, count);
    if (lane == 0) shared.row_counts[row] = count;
  }
  Tile::sync_consumers();
  for (int row = warp; row < region.rows; row += kWarps) {
    const int end = row_begin(row + 1);
    int before = 0;
    for (int i = lane; i < row; i += 32) before += shared.row_counts[i];
    before = __reduce_add_sync(~0u, before);
    for (int first = row_begin(row); first < end; first += 32) {
      const int block = first + lane;
      int column = 0, strip = -1;
      if (block < end) {
        column = load_narrow_index(args.col_indices, block, args.wide_indices) * args.block_k;
        strip = counts.number_of[column / kStripWidth];
      }
      const uint32_t mine = __ballot_sync(~0u, strip >= 0);
      if (strip >= 0) {
        SampledUnit* to = shared.units + (before + __popc(mine & ((1u << lane) - 1))) * units_each;
        for (int i = 0; i < units_each; ++i) {
          const int down = i / across * Tile::kUnitM, right = i % across * Tile::kUnitK;
          to[i] = {static_cast<int16_t>((row * args.block_m + down) / 16),
                   static_cast<int16_t>((strip * kStripWidth + column % kStripWidth + right) / 16),
                   block, down * args.block_k + right, 0};
        }
      }
      before += __popc(mine);
    }
  }
  int units = 0;
  for (int i = lane; i < region.rows; i += 32) units += shared.row_counts[i];
  region.units = __reduce_add_sync(~0u, units) * units_each;
  if (threadIdx.x == 0) shared.found[3] = region.units;
  // The ring was written by other means than copies.
  tma_store_fence();
  return region;
}

}  // namespace sparse_autotune
