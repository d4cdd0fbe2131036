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

// A line per variant of the operation on the operands' device: name \t ok, or
// name \t unsupported \t reason.
SPARSE_AUTOTUNE_API std::string legality_of(const Bound& bound);

}  // namespace sparse_autotune
