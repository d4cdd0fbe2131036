// BSR to a dense matrix by whole lines, where its blocks and lines allow it.
#pragma once

#include "operators/product/product.h"

namespace sparse_autotune {

// Whether densify_lines_cuda() can: A as it is stored, blocks of few chunks, lines that fit shared
// memory or can be cut where 16 bytes begin.
bool densifies_lines(const Problem& problem, const Device& device, int64_t dst_alignment);

// Writes A to `dst`, row-major and contiguous, zeros where no block is stored.
Status densify_lines_cuda(const Problem& problem, const Launch& launch, void* dst,
                          int64_t dst_alignment);

}  // namespace sparse_autotune
