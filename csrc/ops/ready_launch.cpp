#include "ops/ready_launch.h"

#include <stdexcept>
#include <string>

#include "autotune/registry.h"
#include "autotune/settings.h"
#include "autotune/signature.h"

namespace sparse_autotune {
namespace {

// One launch for each combination of the leading dimensions that fold into nothing.
Status launch_each(const Variant& variant, const NormalisedCall& call) {
  Launch l = call.launch;
  const int64_t item = size_of(call.problem.dtype);
  std::vector<int64_t> at(call.outer.size(), 0);
  for (bool more = true; more;) {
    int64_t b_offset = 0, c_offset = 0;
    for (size_t i = 0; i < at.size(); ++i) {
      b_offset += at[i] * call.outer[i].b_stride;
      c_offset += at[i] * call.outer[i].c_stride;
    }
    l.b = static_cast<const char*>(call.launch.b) + b_offset * item;
    l.c = static_cast<char*>(call.launch.c) + c_offset * item;
    if (Status status = variant.launch(call.problem, l); !status) return status;
    more = false;
    for (size_t i = 0; i < at.size() && !more; ++i) {
      more = ++at[i] < call.outer[i].size;
      if (!more) at[i] = 0;
    }
  }
  return Status::ok();
}

}  // namespace

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

Status ReadyLaunch::run() {
  Launch& l = call.launch;
  decision.put_pieces(&l);
  if (frozen_copy != nullptr) l.prepared = frozen_copy->data();
  const Variant& variant = *decision.variant;
  const KeptMemories read = {decision.ordered.get(), decision.grouped.get(), frozen_copy.get(),
                             transposed.get()};
  Status status = all_ready_for(l.stream, read);
  if (status) {
    if (prepares()) status = variant.prepare(call.problem, l);
    if (status) {
      status = call.outer.empty() ? variant.launch(call.problem, l) : launch_each(variant, call);
    }
    if (Status kept = all_used_by(l.stream, read); status) status = std::move(kept);
  }
  return status;
}

std::runtime_error launch_failure(const Variant& variant, const Problem& problem,
                                  const Status& status) {
  return std::runtime_error("sparse_autotune: " + std::string(variant.name()) + " failed on " +
                            describe(problem) + ": " + status.message());
}

std::string selector_of(std::string_view variant, Op op) {
  if (!variant.empty()) return std::string(variant);
  std::string forced = forced_variant();
  return forced.empty() || serves(forced, op) ? forced : "";
}

}  // namespace sparse_autotune
