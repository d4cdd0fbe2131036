#include "calls/ready_launch.h"

#include <string>

#include "autotune/registry.h"
#include "autotune/settings.h"
#include "calls/each_launch.h"
#include "operator.h"
#include "plan/current_device.h"

namespace sparse_autotune {

bool ReadyLaunch::find(Plan& plan, uint64_t generation, std::string_view selector) {
  std::optional<Decision> found = plan.find(call.problem, generation, selector);
  if (!found) return false;
  if (found->not_in_graphs && capturing(call.launch.stream)) return false;
  decision = std::move(*found);
  if (decision.prepared_bytes == 0 || !call.problem.frozen) return true;
  frozen_copy = plan.find_copy(call.launch.values, decision.variant, call.problem);
  return frozen_copy != nullptr;
}

ScratchLayout ReadyLaunch::scratch() const {
  return {decision.workspace_bytes, prepares() ? decision.prepared_bytes : 0};
}

Status ReadyLaunch::run() {
  Launch& l = call.launch;
  decision.put_pieces(&l);
  if (frozen_copy != nullptr) l.prepared = frozen_copy->data();
  const Variant& variant = *decision.variant;
  const KeptMemories read = {decision.ordered.get(), decision.grouped.get(), decision.tasks.get(),
                             frozen_copy.get(), transposed.get()};
  Status status = all_ready_for(l.stream, read);
  if (status) {
    if (prepares()) status = variant.prepare(call.problem, l);
    if (status) {
      status =
          each_launch(call, [&](const Launch& one) { return variant.launch(call.problem, one); });
    }
    if (Status kept = all_used_by(l.stream, read); status) status = std::move(kept);
  }
  return status;
}

Refusal launch_failure(const AnyVariant& variant, AnyProblem problem, const Status& status) {
  return Refusal("sparse_autotune: " + std::string(variant.name()) + " failed on " +
                     describe(problem) + ": " + status.message(),
                 status.code() == StatusCode::kOutOfMemory ? Fault::kMemory : Fault::kLaunch);
}

std::string selector_of(std::string_view variant, const Operator& op) {
  if (!variant.empty()) return std::string(variant);
  std::string forced = forced_variant();
  return forced.empty() || serves(forced, op) ? forced : "";
}

}  // namespace sparse_autotune
