// Activations of many sums at once (on a CPU the library's functions, called for one element after
// the other, take longer than the products of most layers), and the epilogue as a pass of its own,
// for routines that cannot fuse it.
#pragma once

#include "exported.h"
#include "operators/product/product.h"

namespace sparse_autotune {

void activate_all(float* x, int64_t count, Activation activation);
void activate_all(double* x, int64_t count, Activation activation);

// C = activation(C + bias) in place; nothing where the problem has neither. The product has been
// rounded to C's type by then, as in PyTorch's unfused sequence.
SPARSE_AUTOTUNE_API void apply_epilogue_cpu(const Problem& problem, const Launch& launch);

}  // namespace sparse_autotune
