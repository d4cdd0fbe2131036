// cusparseSDDMM on the BSR pattern as it is: nothing is converted, scratch is cuSPARSE's own.
//
// Documented limits: square row-major blocks of 2, 4, 8, 16, 32, 64 or 128; any layout of both
// dense matrices, 32- and 64-bit indices, half types accumulated in fp32. Not documented, but what
// 12.6 says: sums of a multiple of the block's side. One matrix of a batch a call, each added to
// the values. bf16 on an H200: 32 nnz TFLOP/s at blocks of 128, 6 below.
#include <bit>

#include "libraries/cusparse_matrices.h"

namespace sparse_autotune {
namespace {

constexpr int kSddmmOnBsrVersion = 12100;
constexpr int64_t kLargestBlock = 128;

// The two dense operands and the pattern of a launch.
struct Matrices {
  SparseMatrix values;
  DenseMatrix c, b;

  Status create(const Problem& p, const void* crow, const void* col, void* sampled, void* c_data,
                void* b_data) {
    Status status = describe_bsr(p, crow, col, sampled, values);
    if (status) status = c.create(p.m, p.n, p.ldc, c_data, p.dtype, p.c_layout);
    // B^T as a matrix of its own: cuSPARSE transposes neither operand of this product.
    const Layout turned = p.b_layout == Layout::kRowMajor ? Layout::kColMajor : Layout::kRowMajor;
    if (status) status = b.create(p.n, p.k, p.ldb, b_data, p.dtype, turned);
    return status;
  }
};

class SampledCuSparse final : public Variant {
 public:
  using Variant::Variant;

  Support supports(const Problem& p, const Device&) const override {
    if (Support s = cusparse_since(kSddmmOnBsrVersion, "SDDMM on BSR matrices"); !s) return s;
    const bool power = std::has_single_bit(static_cast<uint64_t>(p.block_m));
    if (p.block_m != p.block_k || !power || p.block_m < 2 || p.block_m > kLargestBlock) {
      return Support::no("cuSPARSE takes square blocks of 2, 4, 8, 16, 32, 64 or 128, these are " +
                         std::to_string(p.block_m) + "x" + std::to_string(p.block_k));
    }
    if (p.n % p.block_m != 0) {
      return Support::no("cuSPARSE takes sums whose length is a multiple of the block's side, " +
                         std::to_string(p.block_m) + ", this one is " + std::to_string(p.n));
    }
    // Each matrix of a batch is added to values that are rounded.
    if (p.batch > 1 && is_half(p.dtype)) {
      return Support::no("the sum over a batch would be rounded to the half type at each matrix");
    }
    // With 32-bit indices cuSPARSE computes offsets in 32 bits too.
    if (p.index_type == IndexType::kInt32 &&
        (p.nnzb > INT32_MAX / (p.block_m * p.block_k) || !dense_fits_int32(p))) {
      return Support::no("with int32 indices, values, x and y may span 2^31 - 1 elements at most");
    }
    return Support::yes();
  }

  double estimate_us(const Problem& p, const Device& d) const override {
    const double share = p.block_m == kLargestBlock ? 0.5 : 0.1;
    return roofline_us(nnz_flops(p), share * fma_tflops(p, d), compulsory_bytes(p), d.memory_gbps,
                       6.0 * static_cast<double>(p.batch));
  }

  int64_t workspace_bytes(const Problem& p, const Device& d) const override {
    const CuSparseLease lease(d.ordinal, nullptr);
    if (!lease.status()) return 0;
    Matrices m;
    void* unused = unused_address();
    if (!m.create(p, unused, unused, unused, unused, unused)) return 0;
    size_t bytes = 0;
    // Where cuSPARSE declines the problem, launch() fails with its reason.
    const Status status = buffer_size(lease, p, m, &bytes);
    return status ? static_cast<int64_t>(bytes) : 0;
  }

  Status launch(const Problem& p, const Launch& l) const override {
    const CuSparseLease lease(l.device->ordinal, l.stream);
    if (!lease.status()) return lease.status();
    auto* c = static_cast<char*>(l.c);
    auto* b = static_cast<char*>(const_cast<void*>(l.b));
    Matrices m;
    if (Status s = m.create(p, l.crow_indices, l.col_indices, l.sampled, c, b); !s) return s;
    for (int64_t i = 0; i < p.batch; ++i) {
      if (i > 0) {
        c += p.c_batch_stride * size_of(p.dtype);
        b += p.b_batch_stride * size_of(p.dtype);
        Status s = to_status(cusparse().set_dense_values(m.c.get(), c), "cusparseDnMatSetValues");
        if (s) s = to_status(cusparse().set_dense_values(m.b.get(), b), "cusparseDnMatSetValues");
        if (!s) return s;
      }
      const cusparseStatus_t status = cusparse().sddmm(
          lease.handle(), CUSPARSE_OPERATION_NON_TRANSPOSE, CUSPARSE_OPERATION_NON_TRANSPOSE,
          kScalars.one(p.dtype), m.c.get(), m.b.get(),
          i > 0 ? kScalars.one(p.dtype) : kScalars.zero(p.dtype), m.values.get(),
          compute_type(p.dtype), CUSPARSE_SDDMM_ALG_DEFAULT, l.workspace);
      if (Status s = to_status(status, "cusparseSDDMM"); !s) return s;
    }
    return Status::ok();
  }

 private:
  static Status buffer_size(const CuSparseLease& lease, const Problem& p, Matrices& m,
                            size_t* bytes) {
    const cusparseStatus_t status = cusparse().sddmm_buffer_size(
        lease.handle(), CUSPARSE_OPERATION_NON_TRANSPOSE, CUSPARSE_OPERATION_NON_TRANSPOSE,
        kScalars.one(p.dtype), m.c.get(), m.b.get(), kScalars.zero(p.dtype), m.values.get(),
        compute_type(p.dtype), CUSPARSE_SDDMM_ALG_DEFAULT, bytes);
    return to_status(status, "cusparseSDDMM_bufferSize");
  }
};

const SampledCuSparse kSampledCuSparse{DeviceType::kCuda, "sampled_cusparse/default", Op::kSampled};
const Registration kRegisterSampledCuSparse{kSampledCuSparse};

}  // namespace
}  // namespace sparse_autotune
