// The product operators.
#pragma once

#include "ops/arguments.h"

namespace sparse_autotune {

// C = op(A) * B into a new contiguous tensor / into `out`.
Tensor matmul(const MatmulArguments& arguments);
void matmul_out(const MatmulArguments& arguments, const Tensor& out);

}  // namespace sparse_autotune
