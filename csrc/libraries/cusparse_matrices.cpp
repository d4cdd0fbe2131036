#include "libraries/cusparse_matrices.h"

#include <algorithm>

namespace sparse_autotune {

SparseMatrix::~SparseMatrix() {
  if (descriptor_ != nullptr) cusparse().destroy_sparse(descriptor_);
}

cudaDataType cuda_type(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
      return CUDA_R_16F;
    case DType::kBFloat16:
      return CUDA_R_16BF;
    case DType::kFloat32:
      return CUDA_R_32F;
    case DType::kFloat64:
      return CUDA_R_64F;
  }
  return CUDA_R_64F;
}

void* unused_address() { return reinterpret_cast<void*>(uintptr_t{256}); }

bool dense_fits_int32(const Problem& p) {
  const int64_t b_lines = p.b_layout == Layout::kRowMajor ? p.k : p.n;
  const int64_t c_lines = p.c_layout == Layout::kRowMajor ? p.m : p.n;
  return p.ldb <= INT32_MAX / std::max<int64_t>(b_lines, 1) &&
         p.ldc <= INT32_MAX / std::max<int64_t>(c_lines, 1);
}

cudaDataType compute_type(DType dtype) {
  return dtype == DType::kFloat64 ? CUDA_R_64F : CUDA_R_32F;
}

Status describe_bsr(const Problem& p, const void* crow, const void* col, const void* values,
                    SparseMatrix& a) {
  const cusparseIndexType_t index =
      p.index_type == IndexType::kInt64 ? CUSPARSE_INDEX_64I : CUSPARSE_INDEX_32I;
  return to_status(
      cusparse().create_bsr(a.put(), block_rows(p), block_cols(p), p.nnzb, p.block_m, p.block_k,
                            const_cast<void*>(crow), const_cast<void*>(col),
                            const_cast<void*>(values), index, index, CUSPARSE_INDEX_BASE_ZERO,
                            cuda_type(p.dtype), CUSPARSE_ORDER_ROW),
      "cusparseCreateBsr");
}

DenseMatrix::~DenseMatrix() {
  if (descriptor_ != nullptr) cusparse().destroy_dense(descriptor_);
}

Status DenseMatrix::create(int64_t rows, int64_t cols, int64_t ld, void* data, DType dtype,
                           Layout layout) {
  const cusparseOrder_t order =
      layout == Layout::kRowMajor ? CUSPARSE_ORDER_ROW : CUSPARSE_ORDER_COL;
  return to_status(
      cusparse().create_dense(&descriptor_, rows, cols, ld, data, cuda_type(dtype), order),
      "cusparseCreateDnMat");
}

}  // namespace sparse_autotune
