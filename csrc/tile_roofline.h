// The expected time of a kernel whose thread blocks own tiles of C: a roofline of four numbers; and
// which order of block rows is expected to end soonest.
//
// What a device can do comes from its driver (Device), not from measuring it: then processes and
// ranks that choose without a race choose alike.
#pragma once

#include <algorithm>
#include <cstdint>

#include "operators/product/product.h"

namespace sparse_autotune {

// What a launch does, a tile on average. Rows and columns of a tile that are idle count.
struct TileWork {
  double tiles;       // of the launch
  double flops;       // of a tile
  double fetched;     // bytes of A and B through L2 for a tile
  double stored;      // bytes of C
  double longest;     // the longest tile's work over the average
  double panels = 1;  // of columns, one after another: a long row has a tile in each
};

// What a family reaches: fitted to races on an H100 and an H200 (benchmarks/results/evidence_*).
struct TileRates {
  double start_us;  // setting up a launch, and its first latencies
  double compute;   // share of the arithmetic's limit
  double l2;        // share of what L2 hands out to multiprocessors
  double alone;     // time of a tile alone on a multiprocessor over its share of a full one's
};

// `tflops`: the arithmetic's limit.
inline double tiled_us(const TileWork& work, const TileRates& rates, double tflops,
                       const Problem& p, const Device& d) {
  constexpr double kStored = 0.23;  // of L2's rate, for C on its way back
  const double multiprocessors = std::max(d.multiprocessors, 1);
  const double l2 = d.l2_gbps * 1e3 / multiprocessors;
  const double steps_us = std::max(work.flops / (rates.compute * tflops * 1e6 / multiprocessors),
                                   work.fetched / (rates.l2 * l2));
  const double store_us = work.stored / (kStored * l2);
  const double each = work.tiles / multiprocessors;
  // Whoever is free takes the next tile: at the end half a tile's time is lost.
  const double rounds = each > 1 ? each + 0.5 : each;
  const double even_us = rounds * (steps_us + store_us), last_us = even_us / work.panels;
  const double longest_us = work.longest * rates.alone * steps_us + store_us;
  return rates.start_us +
         std::max(even_us - last_us + std::max(last_us, longest_us), uncached_us(p, d));
}

// The order from `first` on whose us(order) is least, of those that cut a row; `best` if none takes
// less than `best_us`.
template <typename Us>
int cheapest_order(const Problem& p, int best, double best_us, int first, const Us& us) {
  for (int order = first; order < kRowOrders; ++order) {
    if (p.row_cuts.rows[order] == 0) continue;
    const double takes = us(order);
    if (takes >= best_us) continue;
    best = order;
    best_us = takes;
  }
  return best;
}
// An order's entries: block rows, or parts of those that it cuts.
inline int64_t entries_of(const Problem& p, int order) {
  return block_rows(p) - p.row_cuts.rows[order] + p.row_cuts.parts[order];
}

// Tiles of m x n, each of one of `entries` block rows (or parts of them), of which the longest has
// so many blocks (-1: not known).
inline TileWork tiles_of_rows(const Problem& p, int64_t m, int64_t n, int64_t entries,
                              int64_t longest) {
  const auto rows = static_cast<double>(std::max<int64_t>(entries, 1));
  const double blocks = std::max(static_cast<double>(p.nnzb), 1.0) / rows;
  const double row_k = blocks * static_cast<double>(p.block_k), size = size_of(p.dtype);
  return {.tiles = rows * static_cast<double>(ceil_div(p.block_m, m) * ceil_div(p.n, n) * p.batch),
          .flops = 2.0 * static_cast<double>(m * n) * row_k,
          .fetched = row_k * size * static_cast<double>(std::min(p.block_m, m) + std::min(p.n, n)),
          .stored = static_cast<double>(m * n) * size,
          .longest = std::max(static_cast<double>(longest) / blocks, 1.0)};
}

// Tiles of m x n, each of a group of block rows, which fetch B once for all of them.
inline TileWork tiles_of_groups(const Problem& p, int64_t m, int64_t n, int grouping) {
  const auto groups = static_cast<double>(ceil_div(block_rows(p), group_rows(grouping)));
  const double columns = p.group_counts.columns[grouping] / groups, size = size_of(p.dtype);
  const double values = static_cast<double>(p.nnzb * p.block_m * p.block_k) / groups;
  const double fetched = columns * static_cast<double>(p.block_k * n) + values;
  return {.tiles = groups * static_cast<double>(ceil_div(p.n, n) * p.batch),
          .flops = 2 * values * static_cast<double>(n),
          .fetched = fetched * size,
          .stored = static_cast<double>(m * n) * size,
          .longest = std::max(p.group_counts.longest[grouping] / columns, 1.0)};
}

}  // namespace sparse_autotune
