// A in other layouts, on the CPU.
#pragma once

#include "exported.h"
#include "kernels/cpu/microkernels/tiled.h"
#include "operators/product/product.h"

namespace sparse_autotune {

// How densify_cpu() lays op(A) out: row-major, or column-major where A^T's blocks lie so and have
// rows of a cache line at least.
SPARSE_AUTOTUNE_API Layout densified_layout(const Problem& problem);

// Writes op(A) to `dst`, contiguous, zeros where no block is stored. Any block size and dtype.
SPARSE_AUTOTUNE_API void densify_cpu(const Problem& problem, const Launch& launch, void* dst);

// Takes the stored blocks of block rows [first, first + rows) from `product`, their rows of a dense
// matrix (row-major, contiguous, as wide as A), into the launch's `sampled`. `add`: on top of what
// is there; fp32 and fp64 only.
SPARSE_AUTOTUNE_API void gather_blocks_cpu(const Problem& problem, const Launch& launch,
                                           const void* product, int64_t first, int64_t rows,
                                           bool add);

// Writes op(A)'s blocks under `transpose` to `dst`, contiguous, in op(A)'s order and each
// row-major: what `values` is to a product without `transpose`. Any block size and dtype; `kernels`
// turn those that are whole vectors of what they accumulate.
void transpose_blocks_cpu(const Problem& problem, const Launch& launch,
                          const cpu_tiled::Microkernels& kernels, void* dst);

}  // namespace sparse_autotune
