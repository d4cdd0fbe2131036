// What the tuner is asked about a call: a race now, and what is legal.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "autotune/race.h"
#include "calls/bound.h"
#include "exported.h"

namespace sparse_autotune {

struct RaceOrder {
  std::string variants;  // names or families, comma-separated; empty: all that are legal
  int64_t rounds = 0;    // 0: as many as the budget holds
  double budget_s = 0;   // 0: the setting
  bool eliminate = true;
  bool save = true;
  bool dry_run = false;  // launches nothing: an operator says who is legal
};

// Of any operator: those that `list` means, all that are legal where it is empty. Refuses who is
// named and not legal, and a list of which nobody is.
std::vector<const AnyVariant*> entrants_of(AnyProblem problem, const Device& device,
                                           const std::string& list);
// The settings' options with what the order says.
RaceOptions options_of(const RaceOrder& order);

// The text of the race's record.
SPARSE_AUTOTUNE_API std::string race_bound(Bound& bound, const RaceOrder& order);

// A race of a problem that mode "record" wrote (see problem_text.h), on the pattern of A as stored
// and contiguous, among those that `selector` means, unless its winner is known: "" then.
SPARSE_AUTOTUNE_API std::string race_problem(const std::string& problem,
                                             const TensorView& crow_indices,
                                             const TensorView& col_indices,
                                             const std::string& selector, Caller& caller);

// Of any operator, a line per variant of it on the device: name \t ok, or
// name \t unsupported \t reason.
SPARSE_AUTOTUNE_API std::string legality_of(AnyProblem problem, const Device& device);

}  // namespace sparse_autotune
