// cusparseSpMM for whatever format of A: what its variants share.
#pragma once

#include <cstdint>

#include "libraries/cusparse_matrices.h"
#include "operators/product/product.h"

namespace sparse_autotune {

// Where its grids end cuSPARSE 12.6 reports success and writes nothing: at tiles of 16 columns for
// a BSR matrix, of 64 (fp32) or 128 for Blocked-ELL and a column-major C, in all that was tried.
constexpr int64_t kMaximumColumns = int64_t{65535} * 8;

// C = activation(A * B + bias), one product per matrix of the batch.
Status spmm(const Problem& problem, const Launch& launch, const SparseMatrix& a,
            cusparseSpMMAlg_t algorithm);

// Scratch that spmm() needs, from the shapes alone. 0 where cuSPARSE declines the problem: spmm()
// then fails with cuSPARSE's reason.
int64_t spmm_workspace_bytes(const Problem& problem, const Device& device, const SparseMatrix& a,
                             cusparseSpMMAlg_t algorithm);

}  // namespace sparse_autotune
