#include "plan/row_groups.h"

namespace sparse_autotune {

int64_t row_groups_bytes(const PatternKey& key, const PatternFacts& facts, int grouping) {
  const bool pairs = grouping == kMatchedPairs;
  const int64_t groups = row_group_count(key, grouping);
  // Nobody has counted the columns of pairs; they are no more than the blocks.
  const int64_t columns = pairs ? key.nnzb : facts.group_counts.columns[grouping];
  // Behind what kernels read: the ends of the groups, from which the rest is built.
  return groups * static_cast<int64_t>(sizeof(OrderedRow)) +
         (pairs ? groups : 0) * static_cast<int64_t>(sizeof(RowPair)) +
         columns * static_cast<int64_t>(sizeof(GroupColumn)) +
         (groups + 1) * static_cast<int64_t>(sizeof(int32_t));
}

RowGroups row_groups_at(const PatternKey& key, int grouping, const void* memory) {
  const int64_t count = row_group_count(key, grouping);
  const auto* groups = static_cast<const OrderedRow*>(memory);
  const auto* pairs = reinterpret_cast<const RowPair*>(groups + count);
  if (grouping != kMatchedPairs) {
    return {groups, reinterpret_cast<const GroupColumn*>(pairs), nullptr};
  }
  return {groups, reinterpret_cast<const GroupColumn*>(pairs + count), pairs};
}

#ifndef SPARSE_AUTOTUNE_WITH_CUDA
Status build_row_groups_cuda(const PatternKey&, const PatternFacts&, int, void*, void*) {
  return Status::failed(StatusCode::kLaunchFailed, "this build has no CUDA");
}
#endif

}  // namespace sparse_autotune
