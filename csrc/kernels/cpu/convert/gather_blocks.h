// The stored blocks of a dense matrix, on the CPU.
#pragma once

#include "exported.h"
#include "operators/product/product.h"

namespace sparse_autotune {

// Takes the stored blocks of block rows [first, first + rows) from `product`, their rows of a dense
// matrix (row-major, contiguous, as wide as A), into the launch's `sampled`. `add`: on top of what
// is there; fp32 and fp64 only.
SPARSE_AUTOTUNE_API void gather_blocks_cpu(const Problem& problem, const Launch& launch,
                                           const void* product, int64_t first, int64_t rows,
                                           bool add);

}  // namespace sparse_autotune
