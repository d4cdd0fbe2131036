// The operators that compute: products, their gradients, sampled products.
#pragma once

#include <tuple>

#include "ops/arguments.h"

namespace sparse_autotune {

// activation(op(A) @ dense + bias), or the same on the right: a new contiguous tensor / into `out`.
Tensor matmul(const MatmulArguments& arguments);
void matmul_out(const MatmulArguments& arguments, const Tensor& out);

// The gradients of `dense` and of `values`, given that of the result. `forward` is the product's
// own arguments, without bias, activation and variant.
std::tuple<Tensor, Tensor> matmul_backward(const MatmulArguments& forward, const Tensor& grad);

// x @ y, summed over leading dimensions, at the stored blocks of a pattern: a new contiguous tensor
// of values.
Tensor sampled_matmul(const SampledArguments& arguments);

}  // namespace sparse_autotune
