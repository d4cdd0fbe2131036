// The generic cusparseSpMM on the BSR matrix as it is: nothing is converted.
//
// Documented limits: square row-major blocks, A not transposed, any layout of B and C, 32- and
// 64-bit indices, half types accumulated in fp32. No tensor cores: 10 nnz TFLOP/s on an H200.
#include <algorithm>

#include "libraries/cusparse_spmm.h"
#include "operators/product/product.h"
#include "tile_roofline.h"

namespace sparse_autotune {
namespace {

constexpr int kSpmmOnBsrVersion = 12501;  // CUDA 12.5 update 1

class CuSparseBsr final : public Variant {
 public:
  CuSparseBsr(std::string_view name, cusparseSpMMAlg_t algorithm)
      : Variant(DeviceType::kCuda, name), algorithm_(algorithm) {}

  Support supports(const Problem& p, const Device&) const override {
    if (Support s = cusparse_since(kSpmmOnBsrVersion, "SpMM on BSR matrices"); !s) return s;
    if (p.transpose) return Support::no("cuSPARSE computes A @ B with a BSR A, not A^T @ B");
    if (p.block_m != p.block_k) {
      return Support::no("cuSPARSE takes square blocks, these are " + std::to_string(p.block_m) +
                         "x" + std::to_string(p.block_k));
    }
    if (p.n > kMaximumColumns) {
      return Support::no("cuSPARSE's SpMM on BSR may fail without a word above " +
                         std::to_string(kMaximumColumns) + " columns, these are " +
                         std::to_string(p.n));
    }
    // With 32-bit indices cuSPARSE computes offsets in 32 bits too.
    if (p.index_type == IndexType::kInt32 &&
        (p.nnzb > INT32_MAX / (p.block_m * p.block_k) || !dense_fits_int32(p))) {
      return Support::no("with int32 indices, values, B and C may span 2^31 - 1 elements at most");
    }
    return Support::yes();
  }

  double estimate_us(const Problem& p, const Device& d) const override {
    // As if a thread block had a block row and 32 columns, and took blocks of fewer than 8 x 8 as
    // such: fitted like TileRates.
    constexpr int64_t kColumns = 32, kLeastSide = 8;
    Problem padded = p;
    padded.block_m = std::max(p.block_m, kLeastSide);
    padded.block_k = std::max(p.block_k, kLeastSide);
    const TileWork work =
        tiles_of_rows(padded, padded.block_m, kColumns, block_rows(p), p.longest_row);
    const double start_us = 7.9 * static_cast<double>(p.batch);
    return tiled_us(work, {.start_us = start_us, .compute = 0.145, .l2 = 1, .alone = 3.3},
                    fma_tflops(p, d), p, d);
  }

  int64_t workspace_bytes(const Problem& p, const Device& d) const override {
    SparseMatrix a;
    if (!describe_bsr(p, unused_address(), unused_address(), unused_address(), a)) return 0;
    return spmm_workspace_bytes(p, d, a, algorithm_);
  }

  Status launch(const Problem& p, const Launch& l) const override {
    SparseMatrix a;
    if (Status s = describe_bsr(p, l.crow_indices, l.col_indices, l.values, a); !s) return s;
    return spmm(p, l, a, algorithm_);
  }

 private:
  cusparseSpMMAlg_t algorithm_;
};

const CuSparseBsr kAlg1{"cusparse_bsr/alg1", CUSPARSE_SPMM_BSR_ALG1};
const Registration kRegisterAlg1{kAlg1};

}  // namespace
}  // namespace sparse_autotune
