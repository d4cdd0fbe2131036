// The product operators: bsr_matmul, bsr_matmul_out, and what the tuner asks of them.
#pragma once

#include "ops/arguments.h"

namespace sparse_autotune {

// C = op(A) * B into a new contiguous tensor / into `out`.
Tensor matmul(const MatmulArguments& arguments);
void matmul_out(const MatmulArguments& arguments, const Tensor& out);

struct RaceArguments {
  std::optional<std::string> variants;  // names or families, comma-separated; none: all legal
  int64_t rounds = 0;                   // 0: as many as the budget holds
  double budget_s = 0;                  // 0: the setting
  bool eliminate = true;
  bool save = true;
  std::optional<Tensor> out;  // not written: its layout is that of the result
};
// The text of the race's record, or "" when there is nothing to race (an empty product).
std::string race_text(const MatmulArguments& arguments, const RaceArguments& race);

// A line per variant of the operand's device: name \t ok, or name \t unsupported \t reason.
std::string legality_text(const MatmulArguments& arguments);

// Builds the pattern's plan ahead of the first product; raises when the indices break a rule.
void prepare_pattern(const Tensor& crow_indices, const Tensor& col_indices, int64_t block_rows,
                     int64_t block_cols);

}  // namespace sparse_autotune
