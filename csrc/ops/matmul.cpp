#include "ops/matmul.h"

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/ops.h>

#include <memory>
#include <utility>

#include "autotune/settings.h"
#include "autotune/tuner.h"
#include "ops/bound.h"
#include "ops/pattern_pieces.h"
#include "ops/ready_launch.h"

namespace sparse_autotune {
namespace {

// By the tuner; an empty `selector` leaves it the choice.
Decision decide(Bound& bound, const std::string& selector) {
  bound.call.launch.device = bound.device;
  const Choice choice =
      choose(bound.call.problem, *bound.device, bound.call.launch, selector, bound.is_capturing,
             [&](const std::vector<const Variant*>& entrants) { add_pieces(bound, entrants); });
  if (choice.variant == nullptr) refuse(choice.error);
  add_pieces(bound, {choice.variant});
  Decision decision = decision_for(bound, *choice.variant);
  decision.validity = choice.validity;
  // Behind a capture what could not be built in it will be.
  const bool final = choice.final && (decision.is_complete() || !bound.is_capturing);
  if (final && bound.plan != nullptr) {
    bound.plan->remember(bound.call.problem, bound.generation, selector, decision);
  }
  return decision;
}

// The frozen copy for this launch, made on first use; null where none may be kept.
std::shared_ptr<KeptMemory> frozen_copy(const Bound& bound, const Decision& d) {
  const Problem& p = bound.call.problem;
  Launch l = bound.call.launch;
  if (!p.frozen || d.prepared_bytes == 0 || bound.plan == nullptr) return nullptr;
  if (!bound.plan->knows_pattern()) return nullptr;
  if (auto copy = bound.plan->find_copy(l.values, d.variant, p)) return copy;
  if (bound.is_capturing || frozen_bytes() + d.prepared_bytes > settings().frozen_bytes) {
    return nullptr;
  }
  Status status = Status::ok();
  auto copy = make_frozen_copy(*bound.device, d.prepared_bytes, l.stream,
                               std::make_shared<Tensor>(alias_of(bound.operand)), &status);
  if (copy == nullptr) return nullptr;  // no memory: converted with every launch instead
  l.device = bound.device;
  d.put_pieces(&l);
  l.prepared = copy->data();
  status = all_ready_for(l.stream, {d.ordered.get(), d.grouped.get()});
  if (status) status = d.variant->prepare(p, l);
  if (status) status = wait_until_filled(*bound.device, l.stream);
  if (!status) {
    // What was enqueued before the failure may still write the copy.
    static_cast<void>(copy->filled_by(l.stream));
    refuse(std::string(d.variant->name()) + ": " + status.message());
  }
  bound.plan->remember_copy(l.values, d.variant, p, copy);
  return copy;
}

Status launch(const Bound& bound, const Decision& decision) {
  ReadyLaunch ready;
  ready.decision = decision;
  ready.frozen_copy = frozen_copy(bound, decision);
  ready.transposed = bound.transposed;
  ready.call = bound.call;
  ready.call.launch.device = bound.device;
  const ScratchLayout layout = ready.scratch();
  std::optional<Tensor> allocated;
  if (layout.bytes() > 0) {
    const bool on_cpu = bound.call.problem.device == DeviceType::kCpu;
    void* memory = on_cpu ? cpu_scratch(layout.bytes()) : nullptr;
    if (memory == nullptr) {
      allocated = empty_bytes(bound.operand, layout.bytes_anywhere());
      memory = ScratchLayout::aligned(allocated->data_ptr());
    }
    layout.put(memory, &ready.call.launch);
  }
  return ready.run();
}

// Chooses the variant, unless one is asked for, and launches it: where that fails, the next best.
void serve(Bound& bound, const std::optional<std::string>& variant) {
  if (variant.has_value() && variant->empty()) refuse("variant must be a name");
  const std::string selector = selector_of(variant.value_or(""), bound.call.problem.op);
  std::optional<Decision> decision;
  if (bound.plan != nullptr) {
    decision = bound.plan->find(bound.call.problem, bound.generation, selector);
  }
  if (!decision) decision = decide(bound, selector);
  for (Status status = launch(bound, *decision); !status; status = launch(bound, *decision)) {
    const Problem& p = bound.call.problem;
    const Variant& failed = *decision->variant;
    const bool replaceable = selector != failed.name() && !bound.is_capturing &&
                             still_works(bound.call.launch.stream) &&
                             demote(p, *bound.device, selector, failed, status);
    if (!replaceable) throw launch_failure(failed, p, status);
    decision = decide(bound, selector);
  }
}

// Returns the pattern's plan, for another call on the same pattern, which it may be `known` from.
template <typename Arguments, typename Call>
std::shared_ptr<Plan> write(const Arguments& a, const Call& call, const Tensor& result,
                            std::shared_ptr<Plan> known = nullptr) {
  std::optional<Bound> bound = bind_call(a, call, result, std::move(known));
  if (!bound) return nullptr;
  serve(*bound, a.variant);
  return bound->plan_of_pattern;
}

// A tensor over the storage of another, without torch's dispatcher.
Tensor tensor_like(const Tensor& tensor, const TensorView& view) {
  AtenTensorHandle made = nullptr;
  TORCH_ERROR_CODE_CHECK(
      aoti_torch__reinterpret_tensor(tensor.get(), view.dims, view.sizes, view.strides, 0, &made));
  return Tensor(made);
}

template <typename Arguments>
Tensor computed(const Arguments& a) {
  const auto call = checked_call(a);
  const DeviceScope scope(a.operand());
  const Tensor result = make_result(a, call);
  write(a, call, result);
  return result;
}

}  // namespace

Tensor compute(const MatmulArguments& a) { return computed(a); }
Tensor compute(const SampledArguments& a) { return computed(a); }

void matmul_out(const MatmulArguments& a, const Tensor& out) {
  const MatmulCall call = checked_call(a);
  const TensorView written = view_of(out);
  if (const char* rule = broken_rule_of_result(call, written)) refuse(rule);
  const DeviceScope scope(a.values);
  NormalisedCall unused;
  if (!normalise(call, written, &unused).c) {
    write(a, call, out);
    return;
  }
  const Tensor contiguous = make_result(a, call);
  write(a, call, contiguous);
  Tensor target = out;
  torch::stable::copy_(target, contiguous);
}

std::tuple<Tensor, Tensor> matmul_backward(const MatmulArguments& forward, const Tensor& grad) {
  const MatmulCall call = checked_call(forward);
  const TensorView given = view_of(grad);
  if (given.dims != call.dense.dims) refuse("the gradient must have the dimensions of the product");
  const GradientCalls calls(call, given);
  MatmulArguments back = forward;
  back.dense = grad;
  back.transpose = !forward.transpose;
  if (const char* rule = broken_rule(calls.of_dense)) refuse(rule);
  const bool grad_left = !call.transposed();
  const SampledArguments sampled{forward.crow_indices,
                                 forward.col_indices,
                                 forward.rows,
                                 forward.cols,
                                 forward.values.size(1),
                                 forward.values.size(2),
                                 tensor_like(grad_left ? grad : forward.dense, calls.of_values.x),
                                 tensor_like(grad_left ? forward.dense : grad, calls.of_values.y),
                                 forward.allow_tf32,
                                 forward.deterministic,
                                 std::nullopt};
  if (const char* rule = broken_rule(calls.of_values)) refuse(rule);
  const DeviceScope scope(forward.values);
  Tensor grad_dense = make_result(back, calls.of_dense);
  std::shared_ptr<Plan> known = write(back, calls.of_dense, grad_dense);
  Tensor grad_values = make_result(sampled, calls.of_values);
  write(sampled, calls.of_values, grad_values, std::move(known));
  return {std::move(grad_dense), std::move(grad_values)};
}

}  // namespace sparse_autotune
