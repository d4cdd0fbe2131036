// The operators of attention.
#pragma once

#include <optional>
#include <string>
#include <tuple>

#include "calls/race_call.h"
#include "ops/arguments.h"

namespace sparse_autotune {

// As the schemas have them.
struct AttentionArguments {
  Tensor q, k, v;
  std::optional<Tensor> crow_indices, col_indices;
  int64_t block_m, block_n;
  bool is_causal;
  std::optional<double> scale;
  int64_t nnzb;
  bool allow_tf32, deterministic;
  std::optional<std::string> variant;
};
struct AttentionGradientArguments {
  Tensor grad_out;
  std::optional<Tensor> grad_lse;
  Tensor out, lse;
  std::optional<Tensor> ccol_indices, row_indices;
};

// out and lse, new; see attention::dense_like.
std::tuple<Tensor, Tensor> compute(const AttentionArguments& arguments);
// The gradients of q, k and v, likewise.
std::tuple<Tensor, Tensor, Tensor> compute(const AttentionArguments& arguments,
                                           const AttentionGradientArguments& gradients);
// What the tuner answers that is asked through an operator, as of products (library.cpp).
std::string race_text(const AttentionArguments& arguments, const RaceOrder& order);
std::string race_text(const AttentionArguments& arguments,
                      const AttentionGradientArguments& gradients, const RaceOrder& order);

// A race of a problem that mode "record" wrote (see calls/attention_problem.h).
struct AttentionMaskArguments {
  Tensor crow_indices, col_indices;
  std::optional<Tensor> ccol_indices, row_indices;
};
std::string race_text(const std::string& problem, const AttentionMaskArguments& mask,
                      const std::string& selector);

}  // namespace sparse_autotune
