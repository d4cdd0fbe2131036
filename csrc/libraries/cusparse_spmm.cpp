#include "libraries/cusparse_spmm.h"

#include "kernels/cuda/host/apply_epilogue.h"

namespace sparse_autotune {
namespace {

Status describe_dense(const Problem& p, void* b, void* c, DenseMatrix& b_matrix,
                      DenseMatrix& c_matrix) {
  if (Status s = b_matrix.create(p.k, p.n, p.ldb, b, p.dtype, p.b_layout); !s) return s;
  return c_matrix.create(p.m, p.n, p.ldc, c, p.dtype, p.c_layout);
}

}  // namespace

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
