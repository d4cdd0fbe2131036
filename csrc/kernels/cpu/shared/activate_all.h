// Activations of many sums at once. On a CPU the library's functions, called for one element after
// the other, take longer than the products of most layers.
#pragma once

#include "operators/product/product.h"

namespace sparse_autotune {

void activate_all(float* x, int64_t count, Activation activation);
void activate_all(double* x, int64_t count, Activation activation);

}  // namespace sparse_autotune
