#include "plan/row_order.h"

namespace sparse_autotune {
namespace {

constexpr double kUneven = 1.05;       // longest row as a multiple of the mean
constexpr double kMaxShare = 0.02;     // of the values' bytes
constexpr int64_t kMaxRows = 1 << 20;  // one thread block sorts them

}  // namespace

bool row_order_pays(const PatternKey& key, const PatternFacts& facts, const Problem& problem,
                    int order) {
  const double mean = static_cast<double>(key.nnzb) / static_cast<double>(key.block_rows);
  const bool matters = order == kWholeRows ? static_cast<double>(facts.longest_row) > kUneven * mean
                                           : facts.row_cuts.rows[order] > 0;
  return matters && key.nnzb <= INT32_MAX && key.block_rows <= kMaxRows &&
         static_cast<double>(row_order_bytes(key, facts, order)) <=
             kMaxShare * values_bytes(problem);
}

#ifndef SPARSE_AUTOTUNE_WITH_CUDA
Status build_row_order_cuda(const PatternKey&, const PatternFacts&, int, void*, OrderedRow*) {
  return Status::failed(StatusCode::kLaunchFailed, "this build has no CUDA");
}
#endif

}  // namespace sparse_autotune
