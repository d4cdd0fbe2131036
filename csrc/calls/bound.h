// A product with its device and its plan: everything that a launch needs but the variant.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "calls/call.h"
#include "calls/caller.h"
#include "exported.h"
#include "plan/plan.h"

namespace sparse_autotune {

struct Bound {
  NormalisedCall call;
  Caller* caller = nullptr;
  const Device* device = nullptr;
  std::shared_ptr<Plan> plan;  // null while capturing a graph with a pattern never seen before
  bool is_capturing = false;
  uint64_t generation = 0;
  std::shared_ptr<KeptMemory> transposed;  // the plan's, where the problem is transposed
  // The plan's, of those that have been added: see pattern_pieces.h. The tasks are the last.
  std::array<std::shared_ptr<KeptMemory>, kPieces + 1> pieces;
};

// `call` is complete. Adds device, stream and plan, whose first look at a pattern checks it;
// `known`, if it is one: the plan that the caller has just found. nullopt: there is nothing to
// launch, and the result is written already; a `variant` that is asked for is legal all the same.
SPARSE_AUTOTUNE_API std::optional<Bound> bind_call(NormalisedCall call,
                                                   const std::optional<std::string>& variant,
                                                   Caller& caller,
                                                   std::shared_ptr<Plan> known = nullptr);

// The same without writing anything: for questions about variants, also of products that launch
// nothing, which get no plan.
SPARSE_AUTOTUNE_API Bound bind_for_questions(NormalisedCall call, Caller& caller,
                                             std::shared_ptr<Plan> known = nullptr);

// `problem` on the pattern of A, as stored and contiguous, with a plan of its own: only for a race,
// which has values, B and C of its own. Refuses a pattern that is not the problem's.
Bound bind_problem(const Problem& problem, const TensorView& crow_indices,
                   const TensorView& col_indices, Caller& caller);

// The plan of a pattern that keeps its rules, built where there is none yet; raises when its
// indices break a rule. Null: it cannot be built while a graph is being captured.
SPARSE_AUTOTUNE_API std::shared_ptr<Plan> find_plan(const PatternKey& key, Caller& caller);

}  // namespace sparse_autotune
