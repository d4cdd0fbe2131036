// BSR to a dense matrix, on the CPU.
#pragma once

#include "variant.h"

namespace sparse_autotune {

// Writes A as stored (not op(A)) to `dst`: row-major and contiguous, m x k, or k x m under
// `transpose`, zeros where no block is stored. Any block size and dtype.
void densify_cpu(const Problem& problem, const Launch& launch, void* dst);

}  // namespace sparse_autotune
