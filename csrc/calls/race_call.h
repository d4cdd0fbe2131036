// What the tuner is asked about a call: a race now, and what is legal.
#pragma once

#include <cstdint>
#include <string>

#include "calls/bound.h"
#include "exported.h"

namespace sparse_autotune {

struct RaceOrder {
  std::string variants;  // names or families, comma-separated; empty: all that are legal
  int64_t rounds = 0;    // 0: as many as the budget holds
  double budget_s = 0;   // 0: the setting
  bool eliminate = true;
  bool save = true;
};

// The text of the race's record.
SPARSE_AUTOTUNE_API std::string race_bound(Bound& bound, const RaceOrder& order);

// A race of a problem that mode "record" wrote (see problem_text.h), on the pattern of A as stored
// and contiguous, among those that `selector` means, unless its winner is known: "" then.
SPARSE_AUTOTUNE_API std::string race_problem(const std::string& problem,
                                             const TensorView& crow_indices,
                                             const TensorView& col_indices,
                                             const std::string& selector, Caller& caller);

// A line per variant of the operation on the operands' device: name \t ok, or
// name \t unsupported \t reason.
SPARSE_AUTOTUNE_API std::string legality_of(const Bound& bound);

}  // namespace sparse_autotune
