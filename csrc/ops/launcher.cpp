#include "ops/launcher.h"

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "autotune/device.h"
#include "autotune/settings.h"
#include "ops/cpu_scratch.h"
#include "ops/dense_layout.h"
#include "ops/torch_runtime.h"
#include "plan/plan_cache.h"
#include "plan/transpose.h"

namespace sparse_autotune {

Launcher::Launcher(const PatternKey& pattern, int64_t rows, int64_t cols, int64_t block_m,
                   int64_t block_k, DType dtype)
    : pattern_(pattern) {
  problem_.op = Op::kMatmul;
  problem_.device = pattern.ordinal < 0 ? DeviceType::kCpu : DeviceType::kCuda;
  problem_.dtype = dtype;
  problem_.index_type = pattern.index_type;
  problem_.m = rows;
  problem_.k = cols;
  problem_.nnzb = pattern.nnzb;
  problem_.block_m = block_m;
  problem_.block_k = block_k;
  problem_.batch = 1;
  transposed_ = problem_;
  transposed_.transpose = true;
  std::swap(transposed_.m, transposed_.k);
  std::swap(transposed_.block_m, transposed_.block_k);
}

bool Launcher::launch(const Call& call) const {
  Problem p = call.transpose ? transposed_ : problem_;
  p.n = call.n;
  const auto b = dense_layout(p.k, p.n, call.b_row_stride, call.b_col_stride);
  const auto c = dense_layout(p.m, p.n, call.c_row_stride, call.c_col_stride);
  if (!b || !c || p.m == 0 || p.n == 0 || p.nnzb == 0 || !forced_variant().empty()) return false;
  p.b_layout = b->layout;
  p.ldb = b->leading;
  p.c_layout = c->layout;
  p.ldc = c->leading;
  p.has_bias = call.bias != nullptr;
  p.activation = call.activation;
  p.frozen = call.frozen;
  p.allow_tf32 = call.allow_tf32;
  p.deterministic = call.deterministic;
  p.exact_nonfinite = exact_nonfinite();
  const int64_t item = size_of(p.dtype);
  p.values_alignment = alignment_of(call.values, 0, 0, item);
  p.b_alignment = alignment_of(call.b, p.ldb, 0, item);
  p.c_alignment = alignment_of(call.c, p.ldc, 0, item);

  Launch l;
  uint64_t generation = settings_generation();
  if (p.device == DeviceType::kCpu) {
    l.parallel = torch_parallel();
    l.device = &cpu_device(l.parallel.threads);
    generation = decision_generation(generation, l.parallel.threads);
  } else {
    if (!is_current_device(pattern_.ordinal)) return false;
    l.device = &cuda_device(pattern_.ordinal);
    l.stream = current_stream(pattern_.ordinal);
  }
  std::shared_ptr<Plan> plan = PlanCache::instance().find(pattern_);
  if (plan == nullptr || !plan->describes({call.crow_version, call.col_version}, l.parallel)) {
    return false;
  }
  l.crow_indices = pattern_.crow_indices;
  l.col_indices = pattern_.col_indices;
  Plan::Transposed transposed;
  if (p.transpose) {
    transposed = plan->transposed();
    if (transposed.plan == nullptr) return false;
    plan = transposed.plan;
    set_pattern(transposed_at(pattern_, transposed.memory->data()), &l);
  }
  add_facts(plan->facts(), &p);
  const std::optional<Decision> decision = plan->find(p, generation);
  if (!decision) return false;
  l.values = call.values;
  l.b = call.b;
  l.bias = call.bias;
  l.c = call.c;
  std::shared_ptr<KeptMemory> copy;
  if (decision->prepared_bytes > 0 && p.frozen) {
    copy = plan->find_copy(call.values, decision->variant, p);
    if (copy == nullptr) return false;
    l.prepared = copy->data();
  }
  const bool prepares = decision->prepared_bytes > 0 && copy == nullptr;
  const int64_t scratch =
      ceil_div(decision->workspace_bytes, kScratchAlignment) * kScratchAlignment;
  const int64_t bytes = scratch + (prepares ? decision->prepared_bytes : 0);
  if (bytes > 0) {
    // A GPU's scratch must come from torch's allocator, in stream order: the operator's way.
    if (p.device == DeviceType::kCuda || bytes > kMaxKeptScratch) return false;
    l.workspace = cpu_scratch(bytes);
    if (l.workspace == nullptr) return false;
    if (prepares) l.prepared = static_cast<char*>(l.workspace) + scratch;
  }
  decision->complete(&l);
  Status status = prepares ? decision->variant->prepare(p, l) : Status::ok();
  if (status) status = decision->variant->launch(p, l);
  decision->used_by(l.stream);
  if (copy != nullptr) copy->used_by(l.stream);
  if (transposed.memory != nullptr) transposed.memory->used_by(l.stream);
  if (!status) {
    throw std::runtime_error("sparse_autotune: " + std::string(decision->variant->name()) +
                             " failed: " + status.message());
  }
  return true;
}

}  // namespace sparse_autotune
