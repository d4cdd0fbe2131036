// Which elements of a product are checked, and how its operands stride.
#pragma once

#include <cstdint>
#include <vector>

#include "host_device.h"
#include "operator.h"
#include "operators/product/product.h"

namespace sparse_autotune {

// The values as a batch of nnzb blocks.
Strides strides_of_values(const Problem& problem);
Strides strides_of_b(const Problem& problem);
Strides strides_of_c(const Problem& problem);
// Of what the problem's operator writes: C or the values.
Strides strides_of_output(const Problem& problem);

// A part of the output inside one block row. Of C: `batch` is the matrix; of a sampled product's
// values: the stored block, within which row and column count.
struct ProductTile {
  int64_t batch, row, col, block_row;
};

// Rows and columns of a tile that the output has: within the block row, up to the output's edge.
SPARSE_AUTOTUNE_HOST_DEVICE inline int tile_rows(const ProductTile& tile, const Problem& p) {
  const int64_t left = p.block_m - tile.row % p.block_m;
  return left < kTileRows ? static_cast<int>(left) : kTileRows;
}
SPARSE_AUTOTUNE_HOST_DEVICE inline int tile_cols(const ProductTile& tile, const Problem& p) {
  const int64_t left = (p.op == Op::kSampled ? p.block_k : p.n) - tile.col;
  return left < kTileCols ? static_cast<int>(left) : kTileCols;
}

// The whole output where its fp64 reference costs at most `flop_limit`; otherwise tiles of the
// first, the last and the longest block row, and of at least 64 random pairs of block row and
// column strip (of a sampled product: stored block and strip), the same in every call. `crow` has
// block_rows + 1 entries.
std::vector<ProductTile> choose_tiles(const Problem& problem, const std::vector<int64_t>& crow,
                                      double flop_limit);

// As the tuner sees it, and back.
Tile on_output(const ProductTile& tile, const Problem& problem);
SPARSE_AUTOTUNE_HOST_DEVICE inline ProductTile of_product(const Tile& tile) {
  return {tile.origin[0], tile.origin[1], tile.origin[2], tile.origin[3]};
}

}  // namespace sparse_autotune
