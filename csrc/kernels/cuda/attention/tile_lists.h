// Where a tile of rows is higher than a block: which columns any of its block rows has, and which
// of them each has.
#pragma once

#include <cstdint>

#include "kernels/attention_arguments.h"
#include "variant.h"

namespace sparse_autotune {

// The block columns of a tile of `tile_rows` rows are entries[crow[r]] and the next count[tile],
// where r is the tile's first block row and crow is its pattern's. Entry: a bit for each of the
// tile's block rows that stores the column, and above these bits the block column. Columns ascend,
// but those of wide entries may be in the order of balanced_order.cuh.
struct TileLists {
  const int32_t* counts = nullptr;   // (patterns, tiles); null: a tile lies in one block row
  const int32_t* entries = nullptr;  // as many as the mask has blocks, at most
};

// Bits of an entry that stand for block rows: 8, or 16 where a tile may have more.
constexpr int kEntryBits = 8, kWideEntryBits = 16;
// What wide entries have room for; and block rows of their tiles, at most.
constexpr int kWideEntryRows = 12;
constexpr int64_t kMaxWideEntryColumns = int64_t{1} << (32 - kWideEntryBits);

// `capacity`: entries that the mask's col_indices has room for.
int64_t tile_lists_bytes(const AttentionMask& mask, const AttentionShape& shape, int tile_rows,
                         int64_t capacity);

// Writes them to memory of that size, on the stream. Entries are wide where `unit` is not 0: then
// the lists of tiles whose columns have `least_rows` block rows each, on average, are put in an
// order that leaves `unit` neighbours together, or more.
Status make_tile_lists(const AttentionMask& mask, const AttentionShape& shape, int tile_rows,
                       void* memory, void* stream, TileLists* lists, int unit = 0,
                       int least_rows = 0);

}  // namespace sparse_autotune
