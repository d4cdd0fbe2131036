#include "calls/serve.h"

#include <memory>
#include <utility>
#include <vector>

#include "autotune/settings.h"
#include "autotune/tuner.h"
#include "calls/pattern_pieces.h"
#include "calls/ready_launch.h"
#include "plan/current_device.h"

namespace sparse_autotune {
namespace {

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
  d.put_pieces(&l);
  l.prepared = copy->data();
  status = all_ready_for(l.stream, {d.ordered.get(), d.grouped.get()});
  if (status) status = d.variant->prepare(p, l);
  if (status) status = wait_until_filled(*bound.device, l.stream);
  if (!status) {
    // What was enqueued before the failure may still write the copy.
    static_cast<void>(copy->filled_by(l.stream));
    refuse(std::string(d.variant->name()) + ": " + status.message(), Fault::kLaunch);
  }
  bound.plan->remember_copy(l.values, d.variant, p, copy);
  return copy;
}

// What follows from the tuner's choice: what it needs is made, and the plan remembers it.
Decision decision_by(const Choice& choice, Bound& bound, const std::string& selector) {
  add_pieces(bound, {choice.variant});
  Decision decision = decision_for(bound, product(*choice.variant));
  decision.validity = choice.validity;
  if (choice.captured != nullptr) {
    decision.not_in_graphs = true;
    // A capture could not make them all.
    add_pieces(bound, {choice.captured});
    static_cast<void>(frozen_copy(bound, decision_for(bound, product(*choice.captured))));
  }
  // Behind a capture what could not be built in it will be; tasks that nobody keeps are built anew.
  const bool final =
      choice.final && !decision.builds_tasks() && (decision.is_complete() || !bound.is_capturing);
  if (final && bound.plan != nullptr) {
    bound.plan->remember(bound.call.problem, bound.generation, selector, decision);
  }
  return decision;
}

// By the tuner; an empty `selector` leaves it the choice.
Decision decide(Bound& bound, const std::string& selector) {
  const Choice choice =
      choose(bound.call.problem, *bound.device, bound.call.launch, selector, bound.is_capturing,
             [&](const std::vector<const AnyVariant*>& entrants) { add_pieces(bound, entrants); });
  if (choice.variant == nullptr) refuse(choice.error, Fault::kVariant);
  return decision_by(choice, bound, selector);
}

std::string selector_for(const Bound& bound, const std::optional<std::string>& variant) {
  if (variant.has_value() && variant->empty()) refuse("variant must be a name");
  return selector_of(variant.value_or(""), operator_of(bound.call.problem));
}

Decision find_or_decide(Bound& bound, const std::string& selector) {
  std::optional<Decision> decision;
  if (bound.plan != nullptr) {
    decision = bound.plan->find(bound.call.problem, bound.generation, selector);
  }
  const bool serves = decision && !(decision->not_in_graphs && bound.is_capturing);
  return serves ? *std::move(decision) : decide(bound, selector);
}

ReadyLaunch ready_for(const Bound& bound, const Decision& decision) {
  ReadyLaunch ready;
  ready.decision = decision;
  ready.frozen_copy = frozen_copy(bound, decision);
  ready.transposed = bound.transposed;
  ready.call = bound.call;
  return ready;
}

Status launch(const Bound& bound, const Decision& decision, const FindScratch& find_scratch) {
  ReadyLaunch ready = ready_for(bound, decision);
  const ScratchLayout layout = ready.scratch();
  if (layout.bytes() > 0) layout.put(find_scratch(layout, *decision.variant), &ready.call.launch);
  return ready.run();
}

FindScratch scratch_of_caller(const Bound& bound) {
  return [&](const ScratchLayout& layout, const Variant&) {
    const bool on_cpu = bound.call.problem.device == DeviceType::kCpu;
    void* const kept = on_cpu ? cpu_scratch(layout.bytes()) : nullptr;
    if (kept != nullptr) return kept;
    return ScratchLayout::aligned(bound.caller->allocate(layout.bytes_anywhere()));
  };
}

}  // namespace

void demote_or_refuse(AnyProblem problem, const AnyLaunch& launch, std::string_view selector,
                      bool is_capturing, const AnyVariant& failed, const Status& status) {
  const bool replaceable = selector != failed.name() && !is_capturing &&
                           still_works(launch.stream) &&
                           demote(problem, *launch.device, selector, failed, status);
  if (!replaceable) throw launch_failure(failed, problem, status);
}

int64_t scratch_bytes(Bound& bound, const std::optional<std::string>& variant) {
  return ready_for(bound, find_or_decide(bound, selector_for(bound, variant))).scratch().bytes();
}

void serve(Bound& bound, const std::optional<std::string>& variant) {
  serve(bound, variant, scratch_of_caller(bound));
}

bool serve_settled(Bound& bound, const std::optional<std::string>& variant) {
  const std::string selector = selector_for(bound, variant);
  const Choice choice = settled(bound.call.problem, *bound.device, selector);
  if (choice.variant == nullptr) return false;
  const Decision decision = decision_by(choice, bound, selector);
  return static_cast<bool>(launch(bound, decision, scratch_of_caller(bound)));
}

void serve(Bound& bound, const std::optional<std::string>& variant,
           const FindScratch& find_scratch) {
  const std::string selector = selector_for(bound, variant);
  Decision decision = find_or_decide(bound, selector);
  for (Status status = launch(bound, decision, find_scratch); !status;
       status = launch(bound, decision, find_scratch)) {
    demote_or_refuse(bound.call.problem, bound.call.launch, selector, bound.is_capturing,
                     *decision.variant, status);
    decision = decide(bound, selector);
  }
}

}  // namespace sparse_autotune
