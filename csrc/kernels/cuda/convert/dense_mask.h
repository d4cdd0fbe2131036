// A mask of blocks for kernels that take one number for each pair of a row and a column, and add it
// to the score.
#pragma once

#include <cstdint>

#include "exported.h"
#include "operators/attention/attention.h"

namespace sparse_autotune {

// Elements from one row of such a mask to the next: vectors of 16 bytes of any type fit.
inline int64_t dense_mask_leading(int64_t columns) { return ceil_div(columns, 8) * 8; }

// Writes (patterns, rows, leading) numbers of the problem's type where `prepared` is, 0 for what is
// seen and minus infinity for the rest, on the stream.
SPARSE_AUTOTUNE_API Status write_dense_mask(const attention::Problem& problem,
                                            const attention::Launch& launch);

// Writes the result of the rows that see no column: zeros, and minus infinity as lse.
SPARSE_AUTOTUNE_API Status clear_unseeing_rows(const attention::Problem& problem,
                                               const attention::Launch& launch);

}  // namespace sparse_autotune
