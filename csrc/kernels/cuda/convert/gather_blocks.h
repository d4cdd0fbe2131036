// The stored blocks of a dense matrix, on the GPU.
#pragma once

#include "exported.h"
#include "operators/product/product.h"

namespace sparse_autotune {

// Takes the stored blocks of block rows [first, first + rows) from `product`, their rows of a dense
// matrix (row-major, contiguous, as wide as A), into the launch's `sampled`. `add`: on top of what
// is there; fp32 and fp64 only. Only enqueues work on the launch's stream.
SPARSE_AUTOTUNE_API Status gather_blocks_cuda(const Problem& problem, const Launch& launch,
                                              const void* product, int64_t first, int64_t rows,
                                              bool add);

}  // namespace sparse_autotune
