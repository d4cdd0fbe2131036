// Which columns a row of attention may see, and which rows see a column: walks along a mask.
#pragma once

#include <algorithm>

#include "kernels/attention_arguments.h"

namespace sparse_autotune::cpu_attention {

// The indices of one pattern's rows: of a mask by rows, or by columns.
struct Lists {
  const int32_t* begins = nullptr;  // null: every block is stored
  const int32_t* blocks = nullptr;
};

inline int64_t pattern_of(const AttentionMask& mask, int64_t batch, int64_t head) {
  return batch * mask.batch_stride + head * mask.head_stride;
}

inline int64_t blocks_along(int64_t length, int64_t block) { return (length + block - 1) / block; }

inline Lists rows_of(const AttentionMask& mask, const AttentionShape& shape, int64_t batch,
                     int64_t head) {
  if (mask.crow_indices == nullptr) return {};
  const int64_t rows = blocks_along(shape.rows, mask.block_m);
  return {mask.crow_indices + pattern_of(mask, batch, head) * (rows + 1), mask.col_indices};
}

inline Lists columns_of(const AttentionMask& mask, const AttentionMaskByColumn& by_column,
                        const AttentionShape& shape, int64_t batch, int64_t head) {
  if (mask.crow_indices == nullptr) return {};
  const int64_t columns = blocks_along(shape.columns, mask.block_n);
  return {by_column.ccol_indices + pattern_of(mask, batch, head) * (columns + 1),
          by_column.row_indices};
}

// Calls visit(first, end) for spans of columns that row block_row of blocks `side` long stores, cut
// at `length`. Without a mask that is one span.
template <typename Visit>
void for_each_span(const Lists& lists, int64_t block_row, int64_t side, int64_t length,
                   Visit&& visit) {
  if (lists.begins == nullptr) {
    if (length > 0) visit(int64_t{0}, length);
    return;
  }
  for (int64_t i = lists.begins[block_row]; i < lists.begins[block_row + 1]; ++i) {
    const int64_t first = lists.blocks[i] * side;
    visit(first, std::min(first + side, length));
  }
}

}  // namespace sparse_autotune::cpu_attention
