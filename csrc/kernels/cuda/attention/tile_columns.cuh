// The columns that a tile of rows sees, in pieces: parts of block columns that are copied as one.
#pragma once

#include <cstdint>

#include "kernels/attention_arguments.h"
#include "kernels/cuda/attention/tile_lists.h"

namespace sparse_autotune {

// A piece: its first column, and a bit for each block row of the tile that has it.
struct ColumnPiece {
  int column;
  unsigned block_rows;
};

// All that is known of a tile before its list is read. kBits: of an entry of TileLists.
template <int kPiece, int kBits = kEntryBits>
struct TileColumns {
  const int32_t* list = nullptr;  // null: dense
  int first = 0, pieces = 0;      // of the tile: which of them are walked along
  int per_block = 1, block_n = kPiece;
  bool merged = false;  // entries are of TileLists, not block columns alone

  __device__ __forceinline__ TileColumns(const AttentionMask& mask, const TileLists& lists,
                                         int64_t batch, int64_t head, int rows, int columns,
                                         bool is_causal, int row, int tile_rows) {
    if (mask.crow_indices == nullptr) {
      const int seen = is_causal ? min(columns, row + tile_rows) : columns;
      pieces = (seen + kPiece - 1) / kPiece;
      return;
    }
    const int64_t pattern = batch * mask.batch_stride + head * mask.head_stride;
    const int64_t block_rows = (rows + mask.block_m - 1) / mask.block_m;
    const int32_t* crow = mask.crow_indices + pattern * (block_rows + 1) + row / mask.block_m;
    const int begin = crow[0];
    block_n = mask.block_n;
    per_block = block_n / kPiece;
    merged = lists.counts != nullptr;
    if (merged) {
      const int64_t tiles = (rows + tile_rows - 1) / tile_rows;
      list = lists.entries + begin;
      pieces = lists.counts[pattern * tiles + row / tile_rows] * per_block;
    } else {
      list = mask.col_indices + begin;
      pieces = (crow[1] - begin) * per_block;
    }
  }

  // Leaves part i of `count`.
  __device__ __forceinline__ void take_part(int i, int count) {
    first = pieces * i / count;
    pieces = pieces * (i + 1) / count - first;
  }

  // Of the list, what names the block of piece i; anything where there is none.
  __device__ __forceinline__ int entry(int i) const {
    return list != nullptr && i < pieces ? list[(first + i) / per_block] : 0;
  }

  // Piece i, given its entry; one past all columns where there is none.
  __device__ __forceinline__ ColumnPiece piece(int i, int entry, int columns) const {
    if (i >= pieces) return {columns, 0};
    i += first;
    if (list == nullptr) return {i * kPiece, ~0u};
    constexpr unsigned kBlockRows = (1u << kBits) - 1;
    const int block = merged ? static_cast<int>(static_cast<unsigned>(entry) >> kBits) : entry;
    return {block * block_n + i % per_block * kPiece, merged ? entry & kBlockRows : ~0u};
  }
};

}  // namespace sparse_autotune
