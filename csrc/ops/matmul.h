// The operators that compute: products and sampled products.
#pragma once

#include "ops/arguments.h"

namespace sparse_autotune {

// A new contiguous tensor: activation(op(A) @ dense + bias), or the same on the right; or the
// values of x @ y, summed over leading dimensions, at the stored blocks of a pattern.
Tensor compute(const MatmulArguments& arguments);
Tensor compute(const SampledArguments& arguments);
// A product, into `out`.
void matmul_out(const MatmulArguments& arguments, const Tensor& out);

}  // namespace sparse_autotune
