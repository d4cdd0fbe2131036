// The stored blocks of a matrix to a dense one and back, on the GPU. Only enqueues work on the
// launch's stream.
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

// Takes the stored blocks of block rows [first, first + rows) from `product`, their rows of a dense
// matrix (row-major, contiguous, as wide as A), into the launch's `sampled`. `add`: on top of what
// is there; fp32 and fp64 only. Only enqueues work on the launch's stream.
SPARSE_AUTOTUNE_API Status gather_blocks_cuda(const Problem& problem, const Launch& launch,
                                              const void* product, int64_t first, int64_t rows,
                                              bool add);

// Whether densify_lines_cuda() can: A as it is stored, blocks of few chunks, lines that fit shared
// memory or can be cut where 16 bytes begin.
bool densifies_lines(const Problem& problem, const Device& device, int64_t dst_alignment);

// Writes A to `dst`, row-major and contiguous, zeros where no block is stored.
Status densify_lines_cuda(const Problem& problem, const Launch& launch, void* dst,
                          int64_t dst_alignment);

}  // namespace sparse_autotune
