// The operators that compute: products, their gradients, sampled products.
#pragma once

#include <tuple>

#include "ops/arguments.h"

namespace sparse_autotune {

// A new contiguous tensor: activation(op(A) @ dense + bias), or the same on the right; or the
// values of x @ y, summed over leading dimensions, at the stored blocks of a pattern.
Tensor compute(const MatmulArguments& arguments);
Tensor compute(const SampledArguments& arguments);
// A product, into `out`.
void matmul_out(const MatmulArguments& arguments, const Tensor& out);

// The gradients of `dense` and of `values`, given that of the result. `forward` is the product's
// own arguments, without bias, activation and variant.
std::tuple<Tensor, Tensor> matmul_backward(const MatmulArguments& forward, const Tensor& grad);

}  // namespace sparse_autotune
