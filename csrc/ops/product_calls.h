// The operators of products and sampled products: what they compute, and what the tuner is asked
// through them.
#pragma once

#include <optional>
#include <string>

#include "calls/race_call.h"
#include "ops/arguments.h"

namespace sparse_autotune {

// A new contiguous tensor: activation(op(A) @ dense + bias), or the same on the right; or the
// values of x @ y, summed over leading dimensions, at the stored blocks of a pattern.
Tensor compute(const MatmulArguments& arguments);
Tensor compute(const SampledArguments& arguments);
// A product, into `out`.
void matmul_out(const MatmulArguments& arguments, const Tensor& out);

// Builds the pattern's plan ahead of the first product; raises when the indices break a rule.
void prepare_pattern(Tensor crow_indices, Tensor col_indices, int64_t rows, int64_t cols,
                     int64_t block_m, int64_t block_k);

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
