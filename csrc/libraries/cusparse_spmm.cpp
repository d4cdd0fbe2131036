#include "libraries/cusparse_spmm.h"

#include <algorithm>

#include "kernels/cuda/apply_epilogue.h"

namespace sparse_autotune {
namespace {

class DenseMatrix {
 public:
  DenseMatrix() = default;
  ~DenseMatrix() {
    if (descriptor_ != nullptr) cusparse().destroy_dense(descriptor_);
  }
  DenseMatrix(const DenseMatrix&) = delete;
  DenseMatrix& operator=(const DenseMatrix&) = delete;

  Status create(int64_t rows, int64_t cols, int64_t ld, void* data, DType dtype, Layout layout) {
    const cusparseOrder_t order =
        layout == Layout::kRowMajor ? CUSPARSE_ORDER_ROW : CUSPARSE_ORDER_COL;
    return to_status(
        cusparse().create_dense(&descriptor_, rows, cols, ld, data, cuda_type(dtype), order),
        "cusparseCreateDnMat");
  }
  cusparseDnMatDescr_t get() const { return descriptor_; }

 private:
  cusparseDnMatDescr_t descriptor_ = nullptr;
};

// Half types accumulate in fp32; fp32 is computed as it is, never through TF32.
cudaDataType compute_type(DType dtype) {
  return dtype == DType::kFloat64 ? CUDA_R_64F : CUDA_R_32F;
}

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
constexpr Scalars kScalars;

Status describe_dense(const Problem& p, void* b, void* c, DenseMatrix& b_matrix,
                      DenseMatrix& c_matrix) {
  if (Status s = b_matrix.create(p.k, p.n, p.ldb, b, p.dtype, p.b_layout); !s) return s;
  return c_matrix.create(p.m, p.n, p.ldc, c, p.dtype, p.c_layout);
}

}  // namespace

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

Status spmm(const Problem& p, const Launch& l, const SparseMatrix& a, cusparseSpMMAlg_t algorithm) {
  const CuSparseLease lease(l.device->ordinal, l.stream);
  if (!lease.status()) return lease.status();
  auto* b = static_cast<char*>(const_cast<void*>(l.b));
  auto* c = static_cast<char*>(l.c);
  DenseMatrix b_matrix, c_matrix;
  if (Status s = describe_dense(p, b, c, b_matrix, c_matrix); !s) return s;

  // cuSPARSE's own batches would need the pattern described once per matrix; a call each is as
  // good, since each fills the GPU.
  for (int64_t i = 0; i < p.batch; ++i) {
    if (i > 0) {
      b += p.b_batch_stride * size_of(p.dtype);
      c += p.c_batch_stride * size_of(p.dtype);
      Status s =
          to_status(cusparse().set_dense_values(b_matrix.get(), b), "cusparseDnMatSetValues");
      if (!s) return s;
      s = to_status(cusparse().set_dense_values(c_matrix.get(), c), "cusparseDnMatSetValues");
      if (!s) return s;
    }
    const cusparseStatus_t status = cusparse().spmm(
        lease.handle(), CUSPARSE_OPERATION_NON_TRANSPOSE, CUSPARSE_OPERATION_NON_TRANSPOSE,
        kScalars.one(p.dtype), a.get(), b_matrix.get(), kScalars.zero(p.dtype), c_matrix.get(),
        compute_type(p.dtype), algorithm, l.workspace);
    if (Status s = to_status(status, "cusparseSpMM"); !s) return s;
  }
  return apply_epilogue(p, l);
}

int64_t spmm_workspace_bytes(const Problem& p, const Device& d, const SparseMatrix& a,
                             cusparseSpMMAlg_t algorithm) {
  const CuSparseLease lease(d.ordinal, nullptr);
  if (!lease.status()) return 0;
  DenseMatrix b_matrix, c_matrix;
  if (!describe_dense(p, unused_address(), unused_address(), b_matrix, c_matrix)) return 0;
  size_t bytes = 0;
  const cusparseStatus_t status = cusparse().spmm_buffer_size(
      lease.handle(), CUSPARSE_OPERATION_NON_TRANSPOSE, CUSPARSE_OPERATION_NON_TRANSPOSE,
      kScalars.one(p.dtype), a.get(), b_matrix.get(), kScalars.zero(p.dtype), c_matrix.get(),
      compute_type(p.dtype), algorithm, &bytes);
  return status == CUSPARSE_STATUS_SUCCESS ? static_cast<int64_t>(bytes) : 0;
}

}  // namespace sparse_autotune
