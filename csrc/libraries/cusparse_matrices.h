// How cuSPARSE is told of matrices and types: what its variants share.
#pragma once

#include <cstdint>

#include "libraries/cusparse.h"
#include "operators/product/product.h"

namespace sparse_autotune {

// Host-side description of a sparse matrix; the arrays stay ours.
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

// Half types accumulate in fp32; fp32 is computed as it is, never through TF32.
cudaDataType compute_type(DType dtype);

// Whether B and C can be indexed by 32 bits.
bool dense_fits_int32(const Problem& problem);

// The problem's BSR matrix on those arrays.
Status describe_bsr(const Problem& problem, const void* crow_indices, const void* col_indices,
                    const void* values, SparseMatrix& matrix);

// The same of a dense one.
class DenseMatrix {
 public:
  DenseMatrix() = default;
  ~DenseMatrix();
  DenseMatrix(const DenseMatrix&) = delete;
  DenseMatrix& operator=(const DenseMatrix&) = delete;

  Status create(int64_t rows, int64_t cols, int64_t ld, void* data, DType dtype, Layout layout);
  cusparseDnMatDescr_t get() const { return descriptor_; }

 private:
  cusparseDnMatDescr_t descriptor_ = nullptr;
};

// 1 and 0 in the compute type, read on the host while the call is made.
struct Scalars {
  float one32 = 1, zero32 = 0;
  double one64 = 1, zero64 = 0;
  const void* one(DType t) const {
    return t == DType::kFloat64 ? static_cast<const void*>(&one64) : &one32;
  }
  const void* zero(DType t) const {
    return t == DType::kFloat64 ? static_cast<const void*>(&zero64) : &zero32;
  }
};
inline constexpr Scalars kScalars;

}  // namespace sparse_autotune
