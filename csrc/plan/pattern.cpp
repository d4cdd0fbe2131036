#include "plan/pattern.h"

#include <algorithm>
#include <atomic>

#include "plan/check_row.h"

namespace sparse_autotune {
namespace {

template <typename Index>
PatternFacts check(const PatternKey& key, const Parallel& parallel) {
  const auto* crow = static_cast<const Index*>(key.crow_indices);
  const auto* col = static_cast<const Index*>(key.col_indices);
  std::atomic<uint32_t> faults{0};
  std::atomic<int64_t> longest{0};
  parallel_for(parallel, 0, key.block_rows, 256, [&](int64_t begin, int64_t end) {
    uint32_t my_faults = 0;
    int64_t my_longest = 0;
    for (int64_t row = begin; row < end; ++row) {
      const RowCheck r = check_row(crow, col, row, key.block_rows, key.block_cols, key.nnzb);
      my_faults |= r.faults;
      my_longest = std::max(my_longest, r.blocks);
    }
    faults |= my_faults;
    int64_t seen = longest.load();
    while (seen < my_longest && !longest.compare_exchange_weak(seen, my_longest)) {
    }
  });
  return {faults.load(), longest.load(), {}, {}};
}

}  // namespace

std::string describe_faults(uint32_t faults) {
  std::string text;
  const auto add = [&](uint32_t bit, const char* words) {
    if ((faults & bit) == 0) return;
    if (!text.empty()) text += "; ";
    text += words;
  };
  add(kFirstNotZero, "crow_indices must start at 0");
  add(kLastNotNnzb, "crow_indices must end at nnzb");
  add(kNotMonotonic, "crow_indices must not decrease");
  add(kColumnOutOfRange, "col_indices must lie in [0, block columns)");
  add(kColumnsUnsorted, "col_indices must ascend strictly within a block row");
  return text;
}

PatternFacts check_pattern(const PatternKey& key, const Parallel& parallel) {
  return key.index_type == IndexType::kInt64 ? check<int64_t>(key, parallel)
                                             : check<int32_t>(key, parallel);
}

#ifndef SPARSE_AUTOTUNE_WITH_CUDA
Status check_pattern_cuda(const PatternKey&, void*, PatternFacts*) {
  return Status::failed(StatusCode::kLaunchFailed, "this build has no CUDA");
}
#endif

}  // namespace sparse_autotune
