#include "ops/direct_launch.h"

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "autotune/device.h"
#include "autotune/settings.h"
#include "calls/ready_launch.h"
#include "calls/serve.h"
#include "ops/torch_caller.h"
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

// Python has looked at the versions.
class DirectCaller final : public TorchCaller {
 public:
  DirectCaller(const std::array<void*, 3>& handles, const std::array<int64_t, 2>& versions)
      : TorchCaller(tensor_of(handles[0]), tensor_of(handles[1]), tensor_of(handles[2])),
        versions_(versions) {}
  std::array<int64_t, 2> versions(const std::array<int64_t, 2>&) override { return versions_; }

 private:
  static Tensor tensor_of(void* handle) { return Tensor(static_cast<AtenTensorHandle>(handle)); }

  const std::array<int64_t, 2> versions_;
};

// What the plan does not remember, or has none yet, of a kind that is settled.
bool launch_settled(NormalisedCall call, const Circumstances& here) {
  const PatternKey& pattern = call.pattern;
  if (!here.handles || call.is_empty() || pattern.nnzb == 0) return false;
  if (pattern.ordinal != kCpuDevice &&
      (!is_current_device(pattern.ordinal) || capturing(current_stream(pattern.ordinal)))) {
    return false;
  }
  const std::array<void*, 3> handles = here.handles();
  if (handles[0] == nullptr) return false;
  DirectCaller caller(handles, here.versions);
  const auto variant =
      here.variant.empty() ? std::nullopt : std::optional<std::string>(here.variant);
  try {
    std::optional<Bound> bound = bind_call(std::move(call), variant, caller);
    return bound && serve_settled(*bound, variant);
  } catch (const Refusal&) {
    return false;  // the operator says why
  }
}

template <typename Call>
bool launch(const Call& call, const TensorView& result, const Circumstances& here) {
  ReadyLaunch ready;
  if (normalise(call, result, &ready.call).any()) return false;
  Surroundings around;
  if (look(ready.call.pattern, here, &around) && make_ready(ready, around, here)) {
    return run(ready, here);
  }
  NormalisedCall as_given;  // once more: make_ready() may have changed the other
  return !normalise(call, result, &as_given).any() && launch_settled(std::move(as_given), here);
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

}  // namespace sparse_autotune::direct
