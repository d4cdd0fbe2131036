#include "plan/row_groups.h"

namespace sparse_autotune {
namespace {

constexpr int64_t kSize = sizeof(OrderedRow);  // of a group, and of a column
static_assert(sizeof(GroupColumn) == kSize);

}  // namespace

int64_t row_groups_bytes(const PatternKey& key, const PatternFacts& facts, int grouping) {
  const int64_t groups = row_group_count(key, grouping);
  // Behind what kernels read: the ends of the groups, from which the rest is built.
  return (groups + facts.group_counts.columns[grouping]) * kSize +
         (key.nnzb + groups + 1) * static_cast<int64_t>(sizeof(int32_t));
}

RowGroups row_groups_at(const PatternKey& key, const PatternFacts& facts, int grouping,
                        const void* memory) {
  const auto* at = static_cast<const char*>(memory);
  const auto* groups = reinterpret_cast<const OrderedRow*>(at);
  at += row_group_count(key, grouping) * kSize;
  const auto* columns = reinterpret_cast<const GroupColumn*>(at);
  at += facts.group_counts.columns[grouping] * kSize;
  return {groups, columns, reinterpret_cast<const int32_t*>(at)};
}

#ifndef SPARSE_AUTOTUNE_WITH_CUDA
Status count_groups_cuda(const PatternKey&, void*, GroupCounts*) {
  return Status::failed(StatusCode::kLaunchFailed, "this build has no CUDA");
}
Status build_row_groups_cuda(const PatternKey&, const PatternFacts&, int, const void*, void*,
                             void*) {
  return Status::failed(StatusCode::kLaunchFailed, "this build has no CUDA");
}
#endif

}  // namespace sparse_autotune
