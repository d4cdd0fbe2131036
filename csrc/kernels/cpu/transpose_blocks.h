// The blocks of A^T as a matrix of their own, on the CPU.
#pragma once

#include "variant.h"

namespace sparse_autotune {

// Writes op(A)'s blocks under `transpose` to `dst`, contiguous, in op(A)'s order and each
// row-major: what `values` is to a product without `transpose`. Any block size and dtype.
void transpose_blocks_cpu(const Problem& problem, const Launch& launch, void* dst);

}  // namespace sparse_autotune
