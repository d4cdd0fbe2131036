// The product operators, and how any operation is served.
#pragma once

#include <optional>
#include <string>

#include "ops/arguments.h"
#include "ops/bound.h"

namespace sparse_autotune {

// C = op(A) * B into a new contiguous tensor / into `out`.
Tensor matmul(const MatmulArguments& arguments);
void matmul_out(const MatmulArguments& arguments, const Tensor& out);

// Chooses the variant, unless `variant` names it, and launches it.
void serve(Bound& bound, const std::optional<std::string>& variant);

}  // namespace sparse_autotune
