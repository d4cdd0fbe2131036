// Which tile of C a thread block works on next.
//
// Tiles are numbered panel by panel: a panel is some tiles wide and all of C high, so that its part
// of B stays in L2 while A streams by. Within a panel neighbours share a row, so that A's blocks
// are fetched from memory once, and with a row order the longest rows come first.
//
// A thread block's first two tiles are given: i of one end, then i of the other, so that who has a
// long one gets a short one. The others go to whoever is free, by a counter in global memory, which
// is what keeps uneven rows from leaving multiprocessors idle. No result depends on who computed
// it.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/load_index.cuh"
#include "operators/product/product.h"

namespace sparse_autotune {

struct Panels {
  unsigned tiles;           // of all matrices of the batch
  unsigned rows;            // tiles from top to bottom of C, or of the row order
  unsigned columns;         // tiles from left to right
  unsigned width;           // of a panel, tiles
  unsigned* counter;        // 0 between launches; null: tiles are dealt out in turn
  const OrderedRow* order;  // null: rows as they come
};

// `rows` and `columns` of tiles in each of `batch` matrices.
inline Panels panels_of(int64_t rows, int64_t columns, int64_t batch, int64_t width,
                        const OrderedRow* order) {
  return {static_cast<unsigned>(rows * columns * batch),
          static_cast<unsigned>(rows),
          static_cast<unsigned>(columns),
          static_cast<unsigned>(width),
          nullptr,
          order};
}

// The width of panels, in tiles of `tile_columns`, whose part of B is no more than `panel_bytes`:
// they stay in L2 beside what streams by. Each panel reads all of A, so a B of up to `whole_bytes`
// is one.
inline int64_t panel_width(const Problem& p, int tile_columns, int64_t whole_bytes,
                           int64_t panel_bytes) {
  const int64_t columns = ceil_div(p.n, tile_columns), bytes = p.k * size_of(p.dtype);  // of one
  if (bytes * p.n <= whole_bytes) return columns;
  const int64_t fit = panel_bytes / (bytes * tile_columns);
  return ceil_div(columns, ceil_div(columns, fit > 0 ? fit : 1));
}

struct TilePlace {
  unsigned row, column, batch;  // `row` counts in the row order
};

__device__ __forceinline__ TilePlace locate(const Panels& panels, unsigned tile) {
  const unsigned per_matrix = panels.rows * panels.columns, per_panel = panels.rows * panels.width;
  TilePlace at;
  at.batch = tile / per_matrix;
  tile -= at.batch * per_matrix;
  const unsigned panel = tile / per_panel;
  tile -= panel * per_panel;
  const unsigned width = min(panels.width, panels.columns - panel * panels.width);
  at.row = tile / width;
  at.column = panel * panels.width + tile - at.row * width;
  return at;
}

// Entry `row` of the order, or that block row as it is.
template <typename Arguments>
__device__ __forceinline__ OrderedRow row_of_order(const Arguments& args, unsigned row) {
  if (args.panels.order != nullptr) return load_entry(args.panels.order, row);
  return {static_cast<int32_t>(row), load_narrow_index(args.crow_indices, row, args.wide_indices),
          load_narrow_index(args.crow_indices, row + 1, args.wide_indices), -1};
}

// The number of this thread block's `turn`-th tile; `panels.tiles` or more: there is none. To be
// called by one thread of the block, for turns 0, 1, 2, ... up to the first that has none. Where
// clusters take tiles, the block is `me` of `all` clusters.
__device__ __forceinline__ unsigned next_tile(const Panels& panels, unsigned turn, unsigned me,
                                              unsigned all) {
  if (turn < 2 || panels.counter == nullptr) {
    return turn * all + (turn % 2 == 0 ? me : all - 1 - me);
  }
  // Each thread block is refused once, so the counter is read as often as tiles are left after the
  // first round, and is 0 again behind the last of these reads.
  return 2 * all + atomicInc(panels.counter, panels.tiles - all - 1);
}
__device__ __forceinline__ unsigned next_tile(const Panels& panels, unsigned turn) {
  return next_tile(panels, turn, blockIdx.x, gridDim.x);
}

}  // namespace sparse_autotune
