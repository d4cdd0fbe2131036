// Where a tile of rows is higher than a block: which columns any of its block rows has, and which
// of them each has.
#pragma once

#include <cstdint>

#include "kernels/attention_arguments.h"
#include "variant.h"

namespace sparse_autotune {

// The block columns of a tile of `tile_rows` rows are entries[crow[r]] and the next count[tile],
// where r is the tile's first block row and crow is its pattern's. Entry: the block column, times
// 256, plus a bit for each of the tile's up to 8 block rows that stores it. Columns ascend.
struct TileLists {
  const int32_t* counts = nullptr;   // (patterns, tiles); null: a tile lies in one block row
  const int32_t* entries = nullptr;  // as many as the mask has blocks, at most
};

constexpr int kMaxTileBlockRows = 8;

// `capacity`: entries that the mask's col_indices has room for.
int64_t tile_lists_bytes(const AttentionMask& mask, const AttentionShape& shape, int tile_rows,
                         int64_t capacity);

// Writes them to memory of that size, on the stream.
Status make_tile_lists(const AttentionMask& mask, const AttentionShape& shape, int tile_rows,
                       void* memory, void* stream, TileLists* lists);

}  // namespace sparse_autotune
