// A product of which nothing is left to decide, and its launch.
#pragma once

#include <memory>
#include <string_view>

#include "calls/call.h"
#include "calls/scratch.h"
#include "exported.h"
#include "plan/plan.h"

namespace sparse_autotune {

class SPARSE_AUTOTUNE_API ReadyLaunch {
 public:
  NormalisedCall call;
  Decision decision{};
  // What the launch reads of the plan's: A^T's indices, and a copy of frozen values.
  std::shared_ptr<KeptMemory> transposed, frozen_copy;

  // Looks up what was decided for `call` and `selector` (see Plan::find) before. False where
  // something has to be decided or made first.
  bool find(Plan& plan, uint64_t generation, std::string_view selector);

  // What run() works in; see ScratchLayout.
  ScratchLayout scratch() const;
  Status run();

 private:
  // Converts the values for this launch alone.
  bool prepares() const { return decision.prepared_bytes > 0 && frozen_copy == nullptr; }
};

// What is thrown when a launch of any operator fails: it names variant and problem.
Refusal launch_failure(const AnyVariant& variant, AnyProblem problem, const Status& status);

// The variant or family that a call is limited to: the one that it names or, where it names none,
// the setting's, if it is about that operator; empty: the tuner chooses.
SPARSE_AUTOTUNE_API std::string selector_of(std::string_view variant, const Operator& op);

}  // namespace sparse_autotune
