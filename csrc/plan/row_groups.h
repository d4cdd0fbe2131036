// Groups of block rows with the columns that they share: see ../row_groups.h.
#pragma once

#include "operators/product/product.h"
#include "plan/pattern.h"

namespace sparse_autotune {

// Groups in a grouping, and the memory that it takes.
constexpr int64_t row_group_count(const PatternKey& key, int grouping) {
  return ceil_div(key.block_rows, group_rows(grouping));
}
// At most so many columns of all groups. Nobody has counted those of matched rows, which are no
// more than the blocks.
int64_t row_group_columns(const PatternKey& key, const PatternFacts& facts, int grouping);
int64_t row_groups_bytes(const PatternKey& key, const PatternFacts& facts, int grouping);

// Where its arrays lie in that memory, which is aligned to 16 bytes.
RowGroups row_groups_at(const PatternKey& key, int grouping, const void* memory);

// Enqueues what fills the memory from a pattern that breaks no rule; a CUDA graph may hold it.
Status build_row_groups_cuda(const PatternKey& key, const PatternFacts& facts, int grouping,
                             void* stream, void* memory);

}  // namespace sparse_autotune
