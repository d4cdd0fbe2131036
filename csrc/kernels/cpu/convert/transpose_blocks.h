// The blocks of A^T as a matrix of their own, on the CPU.
#pragma once

#include "kernels/cpu/microkernels/tiled.h"
#include "operators/product/product.h"

namespace sparse_autotune {

// Writes op(A)'s blocks under `transpose` to `dst`, contiguous, in op(A)'s order and each
// row-major: what `values` is to a product without `transpose`. Any block size and dtype; `kernels`
// turn those that are whole vectors of what they accumulate.
void transpose_blocks_cpu(const Problem& problem, const Launch& launch,
                          const cpu_tiled::Microkernels& kernels, void* dst);

}  // namespace sparse_autotune
