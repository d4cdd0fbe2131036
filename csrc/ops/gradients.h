// Both gradients of a product by one operator.
#pragma once

#include <tuple>

#include "ops/arguments.h"

namespace sparse_autotune {

// The gradients of `dense` and of `values`, given that of the result. `forward` is the product's
// own arguments; its bias, activation and variant are not looked at.
std::tuple<Tensor, Tensor> gradients(const MatmulArguments& forward, const Tensor& grad);

}  // namespace sparse_autotune
