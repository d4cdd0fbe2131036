#include "plan/task_table.h"

namespace sparse_autotune {

int64_t task_table_bytes(const TaskShape& shape, int64_t nnzb, int64_t block_rows) {
  // Behind the tasks: what is noted of rows while they are cut.
  const int64_t notes = shape.joins_rows() ? 2 * block_rows + ceil_div(block_rows, 2) * 2 : 0;
  return static_cast<int64_t>(sizeof(TaskTable)) +
         most_tasks(shape, nnzb, block_rows) * static_cast<int64_t>(sizeof(SampledTask)) +
         (2 * block_rows + notes) * static_cast<int64_t>(sizeof(int32_t));
}

#ifndef SPARSE_AUTOTUNE_WITH_CUDA
Status build_task_table_cuda(const PatternKey&, const TaskShape&, void*, TaskTable*) {
  return Status::failed(StatusCode::kLaunchFailed, "this build has no CUDA");
}
#endif

}  // namespace sparse_autotune
