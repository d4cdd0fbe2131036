// Finds a region of sampled_union_sm90: which panels of columns it has, and its units.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/load_index.cuh"
#include "kernels/cuda/device/tma.cuh"
#include "kernels/cuda/device/warp_sum.cuh"
#include "kernels/cuda/sampled/sampled_union_tile.cuh"

namespace sparse_autotune {

struct SampledRegion {
  int first_row, rows;  // block rows
  int boxes;            // that hold the rows
  int panels, units;    // panels: 0 if there is no such region
  int regions;          // of the group
};

// Stages of the ring, of so many boxes each.
__device__ __forceinline__ int ring_stages(int boxes) {
  return min(kRingBoxes / max(boxes, 1), kMaxStages);
}

// What is counted of a group meanwhile, in the ring.
struct RegionCounts {
  int* blocks;     // in a block column
  int* number_of;  // of a block column's panel in the region, -1: the column is of another
  int* of_region;  // a region's panels and, behind those of all, a region's blocks
};

// What a group is cut by, and what a region has room for.
struct RegionLimits {
  int panels, blocks;
};

// By one warp: cuts the columns in which the group has blocks into args.group_regions regions of
// about equal cost: so much for a column, which is fetched, and for a block, which is multiplied.
// The columns of region `wanted` get the numbers of their panels. False: a region has more than
// fits.
template <typename Tile>
__device__ __forceinline__ bool cut_evenly(const SampledUnionArguments& args,
                                           const SampledUnionShared<Tile>& shared,
                                           const RegionCounts& counts, const RegionLimits& limits,
                                           int column_cost, int block_cost, int wanted) {
  const int lane = threadIdx.x % 32, of_panel = kPanelWidth / args.block_k;
  const auto cost_of = [&](int blocks) {
    return blocks > 0 ? column_cost + block_cost * blocks : 0;
  };
  for (int i = lane; i < 2 * args.group_regions; i += 32) counts.of_region[i] = 0;
  __syncwarp();
  int cost = 0;
  for (int column = lane; column < args.block_cols; column += 32) {
    cost += cost_of(counts.blocks[column]);
  }
  cost = __reduce_add_sync(~0u, cost);
  const float regions_each =
      0.5f * static_cast<float>(args.group_regions) / static_cast<float>(max(cost, 1));
  int before = 0, panels_of_wanted = 0;
  for (int first = 0; first < args.block_cols; first += 32) {
    const int column = first + lane;
    const int here = column < args.block_cols ? counts.blocks[column] : 0;
    const int own = cost_of(here);
    const int up_to = sum_up_to(own);
    const float twice_the_middle = static_cast<float>(2 * (before + up_to) - own);
    const int region =
        here > 0 ? min(static_cast<int>(twice_the_middle * regions_each), args.group_regions - 1)
                 : -1;
    before += __shfl_sync(~0u, up_to, 31);
    // Whether the column is the region's first of its panel.
    bool starts = here > 0;
    for (int i = 1; i < of_panel; ++i) {
      const int other = __shfl_up_sync(~0u, region, i);
      if (lane % of_panel >= i && other == region) starts = false;
    }
    if (starts) atomicAdd(counts.of_region + region, 1);
    if (here > 0) atomicAdd(counts.of_region + args.group_regions + region, here);
    const uint32_t started = __ballot_sync(~0u, starts && region == wanted);
    const int number = panels_of_wanted + __popc(started & (~0u >> (31 - lane))) - 1;
    const bool mine = here > 0 && region == wanted && number < limits.panels;
    if (column < args.block_cols) counts.number_of[column] = mine ? number : -1;
    if (mine && starts) shared.notes().panel[number] = column / of_panel;
    panels_of_wanted += __popc(started);
  }
  __syncwarp();
  bool fits = true;
  for (int i = lane; i < args.group_regions; i += 32) {
    fits = fits && counts.of_region[i] <= limits.panels &&
           counts.of_region[args.group_regions + i] <= limits.blocks;
  }
  if (lane == 0) {
    shared.notes().panels = panels_of_wanted;
    shared.notes().regions = cost > 0 ? args.group_regions : 0;
  }
  return __all_sync(~0u, fits);
}

// By one thread: the same from left to right, each region as large as fits.
template <typename Tile>
__device__ __forceinline__ void cut_greedily(const SampledUnionArguments& args,
                                             const SampledUnionShared<Tile>& shared,
                                             const RegionCounts& counts, const RegionLimits& limits,
                                             int wanted) {
  const int of_panel = kPanelWidth / args.block_k;
  int region = 0, panels = 0, blocks = 0, last = -1, panels_of_wanted = 0;
  for (int column = 0; column < args.block_cols; ++column) {
    const int here = counts.blocks[column], panel = column / of_panel;
    counts.number_of[column] = -1;
    if (here == 0) continue;
    if ((panels == limits.panels && panel != last) || blocks + here > limits.blocks) {
      ++region;
      panels = blocks = 0;
      last = -1;
    }
    if (panel != last) ++panels;
    if (region == wanted) {
      counts.number_of[column] = panels - 1;
      shared.notes().panel[panels - 1] = panel;
      panels_of_wanted = panels;
    }
    blocks += here;
    last = panel;
  }
  shared.notes().panels = panels_of_wanted;
  shared.notes().regions = region + 1;
}

// By the warps that multiply: region `wanted` of a group. What it found is in shared memory too,
// units in the order of their rows. The ring must be idle; it holds counts meanwhile.
template <typename Tile>
__device__ __forceinline__ SampledRegion find_region(const SampledUnionArguments& args,
                                                     const SampledUnionShared<Tile>& shared,
                                                     int group, int wanted) {
  constexpr int kWarps = Tile::kWarps;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  RegionCounts counts;
  counts.blocks = reinterpret_cast<int*>(shared.layout->ring);
  counts.number_of = counts.blocks + args.block_cols;
  counts.of_region = counts.number_of + args.block_cols;
  SampledRegion region{};
  region.first_row = group * args.group_rows;
  region.rows = min(args.group_rows, args.block_rows - region.first_row);
  region.boxes = (region.rows * args.block_m + kPanelWidth - 1) / kPanelWidth;
  const auto row_begin = [&](int row) {
    return load_narrow_index(args.crow_indices, region.first_row + row, args.wide_indices);
  };
  const auto column_of = [&](int block) {
    return load_narrow_index(args.col_indices, block, args.wide_indices);
  };

  Tile::sync_consumers();
  for (int i = threadIdx.x; i < args.block_cols; i += Tile::kConsumers) counts.blocks[i] = 0;
  Tile::sync_consumers();
  for (int row = warp; row < region.rows; row += kWarps) {
    const int end = row_begin(row + 1);
    for (int i = row_begin(row) + lane; i < end; i += 32) {
      atomicAdd(counts.blocks + column_of(i), 1);
    }
  }
  Tile::sync_consumers();
  const int across = args.block_k / Tile::kUnitK;
  const int units_each = args.block_m / Tile::kUnitM * across;
  if (warp == 0) {
    const RegionLimits limits{kMostBoxes - region.boxes, Tile::kUnits / units_each};
    const int block_cost = Tile::kUnitCost * units_each;
    if (!cut_evenly(args, shared, counts, limits, kPanelCost * args.block_k / kPanelWidth,
                    block_cost, wanted) &&
        !cut_evenly(args, shared, counts, limits, 0, block_cost, wanted) && lane == 0) {
      cut_greedily(args, shared, counts, limits, wanted);
    }
  }
  Tile::sync_consumers();
  region.panels = shared.notes().panels;
  region.regions = shared.notes().regions;

  // Rows have their blocks in the region next to each other.
  for (int row = warp; row < region.rows; row += kWarps) {
    const int end = row_begin(row + 1);
    int count = 0;
    for (int i = row_begin(row) + lane; i < end; i += 32) {
      count += counts.number_of[column_of(i)] >= 0 ? 1 : 0;
    }
    count = __reduce_add_sync(~0u, count);
    if (lane == 0) shared.notes().row_count[row] = count;
  }
  Tile::sync_consumers();
  for (int row = warp; row < region.rows; row += kWarps) {
    const int end = row_begin(row + 1);
    int before = 0;
    for (int i = lane; i < row; i += 32) before += shared.notes().row_count[i];
    before = __reduce_add_sync(~0u, before);
    for (int first = row_begin(row); first < end; first += 32) {
      const int block = first + lane;
      int column = 0, panel = -1;
      if (block < end) {
        column = column_of(block);
        panel = counts.number_of[column];
      }
      const uint32_t mine = __ballot_sync(~0u, panel >= 0);
      if (panel >= 0) {
        SampledUnit* to =
            shared.units() + (before + __popc(mine & ((1u << lane) - 1))) * units_each;
        for (int i = 0; i < units_each; ++i) {
          const int down = i / across * Tile::kUnitM, right = i % across * Tile::kUnitK;
          to[i] = {static_cast<int16_t>((row * args.block_m + down) / 16),
                   static_cast<int16_t>(
                       (panel * kPanelWidth + column * args.block_k % kPanelWidth + right) / 16),
                   block, down * args.block_k + right, 0};
        }
      }
      before += __popc(mine);
    }
  }
  int units = 0;
  for (int i = lane; i < region.rows; i += 32) units += shared.notes().row_count[i];
  region.units = __reduce_add_sync(~0u, units) * units_each;
  if (threadIdx.x == 0) shared.notes().units = region.units;
  // The ring was written by other means than copies.
  tma_store_fence();
  return region;
}

}  // namespace sparse_autotune
