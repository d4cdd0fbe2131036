// Patterns: copied, checked, and kept with their plan.
#include <cstring>
#include <limits>
#include <utility>

#include "autotune/device.h"
#include "c_api/handles.h"
#include "c_api/read_product.h"
#include "c_api/status.h"
#include "c_api/thread_pool.h"
#include "plan/current_device.h"
#include "plan/kept_memory.h"

namespace sparse_autotune {
namespace {

using Description = sparse_autotune_pattern_description;

void require_description(const Description& d) {
  require(d.rows >= 0, "description.rows", "must not be negative", d.rows);
  require(d.cols >= 0, "description.cols", "must not be negative", d.cols);
  require(d.block_rows > 0, "description.block_rows", "must be positive", d.block_rows);
  require(d.block_cols > 0, "description.block_cols", "must be positive", d.block_cols);
  require(d.rows % d.block_rows == 0, "description.rows", "must be a multiple of block_rows",
          d.rows);
  require(d.cols % d.block_cols == 0, "description.cols", "must be a multiple of block_cols",
          d.cols);
  require(d.index_type == SPARSE_AUTOTUNE_INT32 || d.index_type == SPARSE_AUTOTUNE_INT64,
          "description.index_type", "must be SPARSE_AUTOTUNE_INT32 or SPARSE_AUTOTUNE_INT64",
          d.index_type);
  require(d.reserved == 0, "description.reserved", "must be 0", d.reserved);
  bounded_product("description", {d.rows, d.cols});
  // Blocks may be larger than a matrix that has none.
  bounded_product("description", {d.block_rows, d.block_cols});
  // A matrix without columns has rows all the same, and an array of their bounds.
  bounded_product("description", {d.rows, 8});
  bounded_product("description", {d.cols, 8});
  const int64_t blocks = (d.rows / d.block_rows) * (d.cols / d.block_cols);
  require(d.nnzb >= 0 && d.nnzb <= blocks, "description.nnzb",
          ("must be 0 to the " + std::to_string(blocks) + " blocks of the matrix").c_str(), d.nnzb);
  if (d.index_type == SPARSE_AUTOTUNE_INT32) {
    constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
    require(d.nnzb <= kMost, "description.nnzb", "must fit into int32 indices", d.nnzb);
    require(d.cols / d.block_cols <= kMost, "description.cols",
            "must have blocks that int32 indices count", d.cols);
  }
  const int64_t item = d.index_type == SPARSE_AUTOTUNE_INT32 ? 4 : 8;
  if (d.crow_indices == nullptr) break_rule("description.crow_indices", "must not be null");
  if (d.col_indices == nullptr && d.nnzb > 0) {
    break_rule("description.col_indices", "must not be null where blocks are stored");
  }
  require_aligned(d.crow_indices, item, "description.crow_indices");
  require_aligned(d.col_indices, item, "description.col_indices");
}

// A copy of both arrays, the second one aligned as the first is.
void copy_indices(const Description& d, sparse_autotune_pattern* p) {
  const int64_t item = d.index_type == SPARSE_AUTOTUNE_INT32 ? 4 : 8;
  const int64_t crow_bytes = p->crow_size * item, col_bytes = p->nnzb * item;
  const int64_t col_at = ceil_div(crow_bytes, 256) * 256;
  Status status = Status::ok();
  p->memory = make_pattern_memory(*p->context.device, col_at + col_bytes, d.stream, &status);
  if (p->memory == nullptr) refuse("the pattern's indices: " + status.message(), Fault::kMemory);
  char* const to = static_cast<char*>(p->memory->data());
  if (p->context.ordinal() < 0) {
    std::memcpy(to, d.crow_indices, static_cast<size_t>(crow_bytes));
    if (col_bytes > 0) std::memcpy(to + col_at, d.col_indices, static_cast<size_t>(col_bytes));
  } else {
    status = copy_to_device(to, d.crow_indices, crow_bytes, d.stream);
    if (status && col_bytes > 0) {
      status = copy_to_device(to + col_at, d.col_indices, col_bytes, d.stream);
    }
    // First: what was enqueued before a failure may still write the memory.
    Status filled = p->memory->filled_by(d.stream);
    if (status) status = std::move(filled);
    if (!status) refuse(status.message(), Fault::kLaunch);
  }
  const ElementType type =
      d.index_type == SPARSE_AUTOTUNE_INT32 ? ElementType::kInt32 : ElementType::kInt64;
  static constexpr int64_t kOne = 1;
  const auto view = [&](const void* data, const int64_t* size) {
    return TensorView{data, size, &kOne, 1, type, p->context.ordinal()};
  };
  p->call = {.crow_indices = view(to, &p->crow_size),
             .col_indices = view(to + col_at, &p->nnzb),
             .rows = p->rows,
             .cols = p->cols,
             .block_m = p->block_m,
             .block_k = p->block_k};
}

PatternFacts facts_of(const PatternKey& key, const Parallel& parallel, void* stream) {
  if (key.ordinal < 0) return check_pattern(key, parallel);
  PatternFacts facts;
  const Status status = check_pattern_cuda(key, stream, &facts);
  if (!status) refuse(status.message(), Fault::kLaunch);
  return facts;
}

}  // namespace
}  // namespace sparse_autotune

using namespace sparse_autotune;

sparse_autotune_status sparse_autotune_pattern_create(
    sparse_autotune_context* context, const sparse_autotune_pattern_description* description,
    sparse_autotune_pattern** pattern) {
  return guarded_call([&] {
    checked(context, "context");
    checked(pattern, "pattern");
    const auto d = read_struct(description, "description");
    require_description(d);
    const CurrentDevice current(context->ordinal());
    if (context->ordinal() >= 0 && capturing(d.stream)) {
      break_rule("description.stream", "must not be captured into a CUDA graph");
    }
    const PoolScope pool(context->threads);
    std::unique_ptr<sparse_autotune_pattern> made(
        new sparse_autotune_pattern{.context = *context,
                                    .memory = nullptr,
                                    .rows = d.rows,
                                    .cols = d.cols,
                                    .block_m = d.block_rows,
                                    .block_k = d.block_cols,
                                    .crow_size = d.rows / d.block_rows + 1,
                                    .nnzb = d.nnzb,
                                    .call = {},
                                    .plan = {}});
    copy_indices(d, made.get());
    const PatternKey key = key_of(made->call);
    const PatternFacts facts = facts_of(key, pool.parallel(), d.stream);
    if (facts.faults != 0) {
      throw Broken(SPARSE_AUTOTUNE_INVALID_PATTERN,
                   "description: " + describe_faults(facts.faults));
    }
    made->plan.set(std::make_shared<Plan>(key, facts, std::array<int64_t, 2>{0, 0}, made->memory));
    *pattern = made.release();
  });
}

void sparse_autotune_pattern_destroy(sparse_autotune_pattern* pattern) {
  if (pattern == nullptr) return;
  const CurrentDevice current(pattern->context.ordinal());
  delete pattern;
}

sparse_autotune_status sparse_autotune_pattern_thaw(sparse_autotune_pattern* pattern,
                                                    const void* values) {
  return guarded_call([&] { checked(pattern, "pattern").plan.get()->drop_copies(values); });
}
