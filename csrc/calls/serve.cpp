#include "calls/serve.h"

#include <memory>
#include <utility>
#include <vector>

#include "autotune/settings.h"
#include "autotune/tuner.h"
#include "calls/pattern_pieces.h"

namespace sparse_autotune {
namespace {

// By the tuner; an empty `selector` leaves it the choice.
Decision decide(Bound& bound, const std::string& selector) {
  const Choice choice =
      choose(bound.call.problem, *bound.device, bound.call.launch, selector, bound.is_capturing,
             [&](const std::vector<const Variant*>& entrants) { add_pieces(bound, entrants); });
  if (choice.variant == nullptr) refuse(choice.error, Fault::kVariant);
  add_pieces(bound, {choice.variant});
  const Decision decision = decision_for(bound, *choice.variant);
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
                               bound.caller->own_values(), &status);
  if (copy == nullptr) return nullptr;  // no memory: converted with every launch instead
  d.complete(&l);
  l.prepared = copy->data();
  status = d.variant->prepare(p, l);
  if (status) status = wait_until_filled(*bound.device, l.stream);
  if (!status) {
    refuse(std::string(d.variant->name()) + ": " + status.message(), Fault::kLaunch);
  }
  bound.plan->remember_copy(l.values, d.variant, p, copy);
  return copy;
}

}  // namespace

ReadyLaunch make_ready(Bound& bound, const std::optional<std::string>& variant) {
  if (variant.has_value() && variant->empty()) refuse("variant must be a name");
  const std::string selector = selector_of(variant.value_or(""), bound.call.problem.op);
  std::optional<Decision> decision;
  if (bound.plan != nullptr) {
    decision = bound.plan->find(bound.call.problem, bound.generation, selector);
  }
  if (!decision) decision = decide(bound, selector);
  ReadyLaunch ready;
  ready.decision = *std::move(decision);
  ready.frozen_copy = frozen_copy(bound, ready.decision);
  ready.transposed = bound.transposed;
  ready.call = bound.call;
  return ready;
}

void serve(Bound& bound, const std::optional<std::string>& variant) {
  ReadyLaunch ready = make_ready(bound, variant);
  const ScratchLayout layout = ready.scratch();
  if (layout.bytes() > 0) {
    const bool on_cpu = bound.call.problem.device == DeviceType::kCpu;
    void* memory = on_cpu ? cpu_scratch(layout.bytes()) : nullptr;
    if (memory == nullptr) {
      memory = ScratchLayout::aligned(bound.caller->allocate(layout.bytes_anywhere()));
    }
    layout.put(memory, &ready.call.launch);
  }
  ready.run();
}

}  // namespace sparse_autotune
