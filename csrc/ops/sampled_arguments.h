// From the sampled operators' tensors to the torch-free Problem and Launch.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "ops/bound.h"

namespace sparse_autotune {

// The arguments that the sampled operators share, as their schema has them.
struct SampledArguments {
  Tensor crow_indices, col_indices;
  int64_t rows, cols, block_m, block_k;
  Tensor x, y;
  bool allow_tf32, deterministic;
  std::optional<std::string> variant;
};

// Uninitialised, contiguous: (nnzb, block_m, block_k). Raises std::runtime_error for whatever would
// touch memory it must not.
Tensor make_sampled_result(const SampledArguments& arguments);

// nullopt: nothing to launch, `result` is written already (or has no elements). `known`: as
// bind_to_plan() has it.
std::optional<Bound> bind_sampled(const SampledArguments& arguments, const Tensor& result,
                                  std::shared_ptr<Plan> known = nullptr);

// The same without writing anything: for questions about variants, also of empty products.
Bound bind_sampled_for_questions(const SampledArguments& arguments, const Tensor& result);

}  // namespace sparse_autotune
