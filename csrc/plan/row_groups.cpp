#include "plan/row_groups.h"

namespace sparse_autotune {

int64_t row_group_columns(const PatternKey& key, const PatternFacts& facts, int grouping) {
  return is_matched(grouping) ? key.nnzb : facts.group_counts.columns[grouping];
}

int64_t row_groups_bytes(const PatternKey& key, const PatternFacts& facts, int grouping) {
  const int64_t groups = row_group_count(key, grouping);
  const int64_t rows = is_matched(grouping) ? groups * group_rows(grouping) : 0;
  // Behind what kernels read: the ends of the groups, from which the rest is built.
  return groups * static_cast<int64_t>(sizeof(OrderedRow)) +
         rows * static_cast<int64_t>(sizeof(int32_t)) +
         row_group_columns(key, facts, grouping) * static_cast<int64_t>(sizeof(GroupColumn)) +
         (groups + 1) * static_cast<int64_t>(sizeof(int32_t));
}

RowGroups row_groups_at(const PatternKey& key, int grouping, const void* memory) {
  const int64_t count = row_group_count(key, grouping);
  const auto* groups = static_cast<const OrderedRow*>(memory);
  const auto* rows = reinterpret_cast<const int32_t*>(groups + count);
  if (!is_matched(grouping)) {
    return {groups, reinterpret_cast<const GroupColumn*>(rows), nullptr};
  }
  const auto* columns = reinterpret_cast<const GroupColumn*>(rows + count * group_rows(grouping));
  return {groups, columns, rows};
}

#ifndef SPARSE_AUTOTUNE_WITH_CUDA
Status build_row_groups_cuda(const PatternKey&, const PatternFacts&, int, void*, void*) {
  return Status::failed(StatusCode::kLaunchFailed, "this build has no CUDA");
}
#endif

}  // namespace sparse_autotune
