// cusparseSpMM for whatever format of A: what its variants share.
#pragma once

#include <cstdint>

#include "libraries/cusparse.h"
#include "variant.h"

namespace sparse_autotune {

// Host-side description of A; the arrays stay ours.
class SparseMatrix {
 public:
  SparseMatrix() = default;
  ~SparseMatrix();
  SparseMatrix(const SparseMatrix&) = delete;
  SparseMatrix& operator=(const SparseMatrix&) = delete;

  cusparseSpMatDescr_t get() const { return descriptor_; }
  cusparseSpMatDescr_t* put() { return &descriptor_; }

 private:
  cusparseSpMatDescr_t descriptor_ = nullptr;
};

cudaDataType cuda_type(DType dtype);

// An address for descriptors that are only asked about, never computed with.
void* unused_address();

// Whether B and C can be indexed by 32 bits.
bool dense_fits_int32(const Problem& problem);

// C = activation(A * B + bias), one product per matrix of the batch.
Status spmm(const Problem& problem, const Launch& launch, const SparseMatrix& a,
            cusparseSpMMAlg_t algorithm);

// Scratch that spmm() needs, from the shapes alone. 0 where cuSPARSE declines the problem: spmm()
// then fails with cuSPARSE's reason.
int64_t spmm_workspace_bytes(const Problem& problem, const Device& device, const SparseMatrix& a,
                             cusparseSpMMAlg_t algorithm);

}  // namespace sparse_autotune
