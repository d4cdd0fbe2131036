// The epilogue as a pass of its own, for products on the CPU whose routine cannot fuse it.
#pragma once

#include "exported.h"
#include "operators/product/product.h"

namespace sparse_autotune {

// C = activation(C + bias) in place; nothing where the problem has neither. The product has been
// rounded to C's type by then, as in PyTorch's unfused sequence.
SPARSE_AUTOTUNE_API void apply_epilogue_cpu(const Problem& problem, const Launch& launch);

}  // namespace sparse_autotune
