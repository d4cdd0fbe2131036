#include "calls/ready_launch.h"

#include <string>

#include "autotune/registry.h"
#include "autotune/settings.h"
#include "autotune/signature.h"
#include "calls/each_launch.h"

namespace sparse_autotune {

bool ReadyLaunch::find(Plan& plan, uint64_t generation, std::string_view selector) {
  std::optional<Decision> found = plan.find(call.problem, generation, selector);
  if (!found) return false;
  decision = std::move(*found);
  if (decision.prepared_bytes == 0 || !call.problem.frozen) return true;
  frozen_copy = plan.find_copy(call.launch.values, decision.variant, call.problem);
  return frozen_copy != nullptr;
}

ScratchLayout ReadyLaunch::scratch() const {
  return {decision.workspace_bytes, prepares() ? decision.prepared_bytes : 0};
}

void ReadyLaunch::run() {
  Launch& l = call.launch;
  decision.complete(&l);
  if (frozen_copy != nullptr) l.prepared = frozen_copy->data();
  const Variant& variant = *decision.variant;
  Status status = prepares() ? variant.prepare(call.problem, l) : Status::ok();
  if (status) {
    status =
        each_launch(call, [&](const Launch& one) { return variant.launch(call.problem, one); });
  }
  decision.used_by(l.stream);
  if (frozen_copy != nullptr) frozen_copy->used_by(l.stream);
  if (transposed != nullptr) transposed->used_by(l.stream);
  if (!status) {
    refuse(std::string(variant.name()) + " failed on " + describe(call.problem) + ": " +
               status.message(),
           status.code() == StatusCode::kOutOfMemory ? Fault::kMemory : Fault::kLaunch);
  }
}

std::string selector_of(std::string_view variant, Op op) {
  if (!variant.empty()) return std::string(variant);
  std::string forced = forced_variant();
  return forced.empty() || serves(forced, op) ? forced : "";
}

}  // namespace sparse_autotune
