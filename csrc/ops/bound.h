// A product with its plan: everything that a launch needs but the variant.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "ops/arguments.h"
#include "plan/plan.h"

namespace sparse_autotune {

struct Bound {
  Product product;
  const Device* device = nullptr;
  std::shared_ptr<Plan> plan;  // null while capturing a graph with a pattern never seen before
  std::shared_ptr<Plan> plan_of_pattern;  // the same, but where the problem is transposed
  bool is_capturing = false;
  uint64_t generation = 0;
  std::shared_ptr<KeptMemory> transposed;  // the plan's, where the problem is transposed
  // The plan's, of those that have been added: see pattern_pieces.h.
  std::array<std::shared_ptr<KeptMemory>, kPieces> pieces;
};

// Adds device, stream and, if it is wanted, the plan, whose first look at a pattern checks it;
// `known`, if it is one: the plan that the same call has just found.
Bound bind_to_plan(Product product, bool wants_plan, std::shared_ptr<Plan> known = nullptr);

// nullopt: nothing to launch, `result` is written already (or has no elements).
std::optional<Bound> bind(const MatmulArguments& arguments, const Tensor& result);

// The same without writing anything: for questions about variants, also of products without blocks.
Bound bind_for_questions(const MatmulArguments& arguments, const Tensor& result);

// Uninitialised and contiguous.
Tensor make_result(const MatmulArguments& arguments, const std::vector<int64_t>& sizes);

// Builds the pattern's plan ahead of the first product; raises when the indices break a rule.
void prepare_pattern(const Tensor& crow_indices, const Tensor& col_indices, int64_t block_rows,
                     int64_t block_cols);

}  // namespace sparse_autotune
