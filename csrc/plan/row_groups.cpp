#include "plan/row_groups.h"

namespace sparse_autotune {

int64_t row_groups_bytes(const PatternKey& key, const PatternFacts& facts, int grouping) {
  const int64_t groups = row_group_count(key, grouping);
  // Behind what kernels read: the ends of the groups, from which the rest is built.
  return groups * static_cast<int64_t>(sizeof(OrderedRow)) +
         facts.group_counts.columns[grouping] * static_cast<int64_t>(sizeof(GroupColumn)) +
         (groups + 1) * static_cast<int64_t>(sizeof(int32_t));
}

RowGroups row_groups_at(const PatternKey& key, int grouping, const void* memory) {
  const auto* groups = static_cast<const OrderedRow*>(memory);
  return {groups, reinterpret_cast<const GroupColumn*>(groups + row_group_count(key, grouping))};
}

#ifndef SPARSE_AUTOTUNE_WITH_CUDA
Status build_row_groups_cuda(const PatternKey&, const PatternFacts&, int, void*, void*) {
  return Status::failed(StatusCode::kLaunchFailed, "this build has no CUDA");
}
#endif

}  // namespace sparse_autotune
