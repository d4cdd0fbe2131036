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
  NormalisedCall call;
  Tensor crow_indices, col_indices;
  Tensor operand;                  // the values; of a sampled product x. Scratch lies beside it
  std::vector<Tensor> kept_alive;  // what else the launch reads and writes
  const Device* device = nullptr;
  std::shared_ptr<Plan> plan;  // null while capturing a graph with a pattern never seen before
  std::shared_ptr<Plan> plan_of_pattern;  // the same, but where the problem is transposed
  bool is_capturing = false;
  uint64_t generation = 0;
  std::shared_ptr<KeptMemory> transposed;  // the plan's, where the problem is transposed
  // The plan's, of those that have been added: see pattern_pieces.h.
  std::array<std::shared_ptr<KeptMemory>, kPieces> pieces;
};

// `call` is that of `arguments`, of either kind, checked. Adds device, stream and plan, whose first
// look at a pattern checks it; `known`, if it is one: the plan that the caller has just found.
// nullopt: nothing to launch, and `result` is written already. Refuses a `result` that no kernel
// can write.
template <typename Arguments, typename Call>
std::optional<Bound> bind_call(const Arguments& arguments, const Call& call, const Tensor& result,
                               std::shared_ptr<Plan> known = nullptr);

// The same without writing anything: for questions about variants, also of products that launch
// nothing, which get no plan.
template <typename Arguments, typename Call>
Bound bind_for_questions(const Arguments& arguments, const Call& call, const Tensor& result);

// `problem` on the pattern of A, as stored, with a plan of its own: only for a race, which has
// values, B and C of its own. Refuses a pattern that is not the problem's.
Bound bind_problem(const Problem& problem, const Tensor& crow_indices, const Tensor& col_indices);

// Builds the pattern's plan ahead of the first product; raises when the indices break a rule.
void prepare_pattern(const Tensor& crow_indices, const Tensor& col_indices, int64_t rows,
                     int64_t cols, int64_t block_m, int64_t block_k);

}  // namespace sparse_autotune
