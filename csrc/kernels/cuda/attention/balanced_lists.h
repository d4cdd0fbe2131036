// Lists of a tile's columns in an order in which all of its block rows come upon their blocks at an
// even pace.
#pragma once

#include "kernels/cuda/attention/tile_lists.h"

namespace sparse_autotune {

// Block rows of such a tile, at most.
constexpr int kBalancedBlockRows = 12;

// Puts wide entries of tiles of at most so many block rows in that order, on the stream.
Status balance_lists(const AttentionMask& mask, const AttentionShape& shape, int tile_rows,
                     const TileLists& lists, void* stream);

}  // namespace sparse_autotune
