// BSR to a dense matrix, on the CPU.
#pragma once

#include "exported.h"
#include "operators/product/product.h"

namespace sparse_autotune {

// How densify_cpu() lays op(A) out: row-major, or column-major where A^T's blocks lie so and have
// rows of a cache line at least.
SPARSE_AUTOTUNE_API Layout densified_layout(const Problem& problem);

// Writes op(A) to `dst`, contiguous, zeros where no block is stored. Any block size and dtype.
SPARSE_AUTOTUNE_API void densify_cpu(const Problem& problem, const Launch& launch, void* dst);

}  // namespace sparse_autotune
