// Tables of tasks of sampled products: see ../sampled_tasks.h.
#pragma once

#include "plan/pattern.h"
#include "sampled_tasks.h"
#include "variant.h"

namespace sparse_autotune {

// The memory that a table takes, for so many stored blocks in so many block rows.
int64_t task_table_bytes(const TaskShape& shape, int64_t nnzb, int64_t block_rows);

// Enqueues what fills that memory, which is aligned to 16 bytes; a CUDA graph may hold it. Indices
// that are no pattern give any tasks, none of which writes outside of the values.
Status build_task_table_cuda(const PatternKey& key, const TaskShape& shape, void* stream,
                             TaskTable* table);

}  // namespace sparse_autotune
