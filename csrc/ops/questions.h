// What the tuner is asked through operators: a race now, and what is legal.
#pragma once

#include <optional>
#include <string>

#include "calls/race_call.h"
#include "ops/arguments.h"

namespace sparse_autotune {

struct RaceArguments {
  RaceOrder order;
  bool dry_run = false;       // launches nothing: says who is legal
  std::optional<Tensor> out;  // not written: its layout is that of the result; not when sampled
};
// The text of the race's record, or "" when there is nothing to race (an empty product). Of a dry
// run, a line per variant of the operation on the operands' device: name \t ok, or
// name \t unsupported \t reason.
std::string race_text(const MatmulArguments& arguments, const RaceArguments& race);
std::string race_text(const SampledArguments& arguments, const RaceArguments& race);

// A race of a problem that mode "record" wrote (see problem_text.h), on the pattern of A as stored,
// among those that `selector` means, unless its winner is known: "" then.
std::string race_text(const std::string& problem, const Tensor& crow_indices,
                      const Tensor& col_indices, const std::string& selector);

}  // namespace sparse_autotune
