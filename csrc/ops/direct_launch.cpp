#include "ops/direct_launch.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "autotune/device.h"
#include "autotune/settings.h"
#include "calls/ready_launch.h"
#include "ops/torch_runtime.h"
#include "plan/current_device.h"
#include "plan/plan_cache.h"
#include "plan/transpose.h"

namespace sparse_autotune::direct {
namespace {

// What all launches of a call share: all but its operands.
struct Surroundings {
  const Device* device = nullptr;
  void* stream = nullptr;
  Parallel parallel;
  uint64_t generation = 0;
  std::shared_ptr<Plan> plan;
};

// False where the pattern's plan is still to be made, or of an older pattern.
bool look(const PatternKey& pattern, const Circumstances& here, Surroundings* found) {
  found->generation = settings_generation();
  if (pattern.ordinal == kCpuDevice) {
    found->parallel = torch_parallel();
    found->device = &cpu_device(found->parallel.threads);
    found->generation = decision_generation(found->generation, found->parallel.threads);
  } else {
    if (!is_current_device(pattern.ordinal)) return false;
    found->device = &cuda_device(pattern.ordinal);
    found->stream = current_stream(pattern.ordinal);
  }
  PlanCache& cache = PlanCache::instance();
  found->plan = cache.find(pattern);
  return found->plan != nullptr && found->plan->knows_pattern() == cache.lasts(pattern) &&
         found->plan->describes(here.versions, found->parallel);
}

bool has_scratch(ReadyLaunch& ready, const Circumstances& here) {
  const ScratchLayout layout = ready.scratch();
  if (layout.bytes() == 0) return true;
  void* const memory = ready.call.problem.device == DeviceType::kCpu
                           ? cpu_scratch(layout.bytes())
                           : ScratchLayout::aligned(here.scratch(layout.bytes_anywhere()));
  if (memory == nullptr) return false;
  layout.put(memory, &ready.call.launch);
  return true;
}

// With `ready.call` normalised: everything up to its scratch, which two launches may share.
bool make_ready(ReadyLaunch& ready, const Surroundings& around, const Circumstances& here) {
  Problem& p = ready.call.problem;
  Launch& l = ready.call.launch;
  if (ready.call.is_empty() || p.nnzb == 0) return false;
  l.device = around.device;
  l.stream = around.stream;
  l.parallel = around.parallel;
  Plan* plan = around.plan.get();
  Plan::Transposed transposed;
  if (p.transpose) {
    transposed = plan->transposed();
    if (transposed.plan == nullptr) return false;
    plan = transposed.plan.get();
    set_pattern(transposed_at(ready.call.pattern, transposed.memory->data()), &l);
    ready.transposed = std::move(transposed.memory);
  }
  add_facts(plan->facts(), &p);
  return ready.find(*plan, around.generation, selector_of(here.variant, operator_of(p)));
}

bool run(ReadyLaunch& ready, const Circumstances& here) {
  // A failure is the operator's to deal with, which launches again.
  return has_scratch(ready, here) && static_cast<bool>(ready.run());
}

template <typename Call>
bool launch(const Call& call, const TensorView& result, const Circumstances& here) {
  ReadyLaunch ready;
  Surroundings around;
  return !normalise(call, result, &ready.call).any() && look(ready.call.pattern, here, &around) &&
         make_ready(ready, around, here) && run(ready, here);
}

}  // namespace

bool matmul(const MatmulCall& call, const TensorView& result, const Circumstances& here) {
  return launch(call, result, here);
}

bool sampled_matmul(const SampledCall& call, const TensorView& result, const Circumstances& here) {
  return launch(call, result, here);
}

bool gradients(const GradientCalls& calls, const TensorView& grad_dense,
               const TensorView& grad_values, const Circumstances& here) {
  ReadyLaunch product, blocks;
  Surroundings around;
  return !normalise(calls.of_dense, grad_dense, &product.call).any() &&
         !normalise(calls.of_values, grad_values, &blocks.call).any() &&
         look(product.call.pattern, here, &around) && make_ready(product, around, here) &&
         make_ready(blocks, around, here) && run(product, here) && run(blocks, here);
}

bool attention(const AttentionCall& call, const TensorView& out, const TensorView& lse,
               const Circumstances& here) {
  void* stream = nullptr;
  Parallel parallel;
  if (call.q.device == kCpuDevice) {
    parallel = torch_parallel();
  } else {
    if (!is_current_device(call.q.device)) return false;
    stream = current_stream(call.q.device);
  }
  AttentionBound bound = bind_attention(call, nullptr, stream, parallel);
  if (bound.is_empty()) return false;
  bound.launch.out = out.writable();
  bound.launch.lse = lse.writable();
  return serve_remembered(bound, here.variant, here.scratch);
}

}  // namespace sparse_autotune::direct
