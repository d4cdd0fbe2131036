// BSR to a dense matrix, on the GPU.
#pragma once

#include "exported.h"
#include "operators/product/product.h"

namespace sparse_autotune {

// Writes A as stored (not op(A)) to `dst`: row-major and contiguous, m x k, or k x m under
// `transpose`, zeros where no block is stored. `dst` is aligned to the element at least; any block
// size and dtype. Only enqueues work on the launch's stream.
SPARSE_AUTOTUNE_API Status densify_cuda(const Problem& problem, const Launch& launch, void* dst);

// Expected time of that in microseconds.
SPARSE_AUTOTUNE_API double densify_us(const Problem& problem, const Device& device);

}  // namespace sparse_autotune
