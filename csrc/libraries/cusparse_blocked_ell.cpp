// cusparseSpMM on A converted to Blocked-ELL: tensor cores, at the price of padding every block row
// to the longest one.
//
// Documented limits: square blocks larger than 1, 32-bit indices, A not transposed, fp32
// accumulation; fp32 inputs go through the tensor cores, so as TF32.
// Wins: large uniform blocks where no kernel of ours applies.
#include <algorithm>

#include "kernels/cuda/convert/blocked_ell.h"
#include "libraries/cusparse_spmm.h"
#include "operators/product/product.h"

namespace sparse_autotune {
namespace {

constexpr int kBlockedEllVersion = 12000;
// Slots per stored block. At four the padded product costs as much as the dense one at the
// densities (25% and below) where anything sparse is worth trying, and takes four times the memory.
constexpr int64_t kMaximumPadding = 4;
// Above it cuSPARSE 12.6 reports success and writes nothing.
constexpr int64_t kMaximumBlockRows = 65535;

Status describe(const Problem& p, void* prepared, SparseMatrix& a) {
  const BlockedEll ell = blocked_ell(p);
  void* indices = static_cast<char*>(prepared) + ell.indices_offset;
  return to_status(cusparse().create_blocked_ell(a.put(), p.m, p.k, p.block_m, ell.cols, indices,
                                                 prepared, CUSPARSE_INDEX_32I,
                                                 CUSPARSE_INDEX_BASE_ZERO, cuda_type(p.dtype)),
                   "cusparseCreateBlockedEll");
}

// Seen on an H200 for row-major C (torch 2.11, CUDA 13.0); the mirrored case is refused unseen.
bool overruns_rows(const Problem& p) {
  const int64_t length = p.c_layout == Layout::kRowMajor ? p.n : p.m;
  return p.b_layout != p.c_layout && length % 8 != 0 && p.ldc > length;
}

class CuSparseBlockedEll final : public Variant {
 public:
  CuSparseBlockedEll(std::string_view name, cusparseSpMMAlg_t algorithm)
      : Variant(DeviceType::kCuda, name), algorithm_(algorithm) {}

  Support supports(const Problem& p, const Device&) const override {
    if (Support s = cusparse_since(kBlockedEllVersion, "Blocked-ELL"); !s) return s;
    if (p.transpose) return Support::no("Blocked-ELL computes A @ B, not A^T @ B");
    if (p.block_m != p.block_k || p.block_m == 1) {
      return Support::no("Blocked-ELL takes square blocks larger than 1, these are " +
                         std::to_string(p.block_m) + "x" + std::to_string(p.block_k));
    }
    if (p.dtype == DType::kFloat32 && !p.allow_tf32) {
      return Support::no("Blocked-ELL computes fp32 through TF32, which is not allowed here");
    }
    if (block_rows(p) > kMaximumBlockRows) {
      return Support::no("cuSPARSE's Blocked-ELL fails without a word above " +
                         std::to_string(kMaximumBlockRows) + " block rows, these are " +
                         std::to_string(block_rows(p)));
    }
    if (p.c_layout == Layout::kColMajor && p.n > kMaximumColumns) {
      return Support::no("cuSPARSE's Blocked-ELL may fail without a word above " +
                         std::to_string(kMaximumColumns) +
                         " columns of a column-major C, these are " + std::to_string(p.n));
    }
    if (p.longest_row < 0) return Support::no("the longest block row is not known");
    if (p.longest_row == 0) return Support::no("no block is stored");
    if (p.longest_row > kMaximumPadding * p.nnzb / block_rows(p)) {
      return Support::no("padding every block row to " + std::to_string(p.longest_row) +
                         " blocks makes more than " + std::to_string(kMaximumPadding) +
                         " times the " + std::to_string(p.nnzb) + " stored blocks");
    }
    if (overruns_rows(p)) {
      return Support::no(
          "cuSPARSE's Blocked-ELL overwrites what lies behind C's rows (columns) when their length "
          "is no multiple of 8 and B has the other layout");
    }
    const int64_t padded_cols = p.longest_row * p.block_k;
    if (p.k > INT32_MAX || padded_cols > INT32_MAX / p.m || !dense_fits_int32(p)) {
      return Support::no(
          "cuSPARSE indexes Blocked-ELL by 32 bits: the padded values, B and C may "
          "span 2^31 - 1 elements at most");
    }
    return Support::yes();
  }

  double estimate_us(const Problem& p, const Device& d) const override {
    const double slots = static_cast<double>(p.longest_row) * block_rows(p);
    const double padding = slots / static_cast<double>(p.nnzb);
    // Of the tensor cores' rate, on an H200 in bf16: 0.2 from blocks of 32 on, 0.08 at 16.
    const double share = 0.2 * std::min(1.0, static_cast<double>(p.block_m * p.block_m) / 640.0);
    const double padded_bytes = values_bytes(p) * padding;
    const double product_us = roofline_us(nnz_flops(p) * padding, share * peak_tflops(p, d),
                                          compulsory_bytes(p) + padded_bytes - values_bytes(p),
                                          d.memory_gbps, 15.0 * static_cast<double>(p.batch));
    if (p.frozen) return product_us;
    return product_us + roofline_us(0, 0, values_bytes(p) + padded_bytes, d.memory_gbps, 3.0);
  }

  int64_t workspace_bytes(const Problem& p, const Device& d) const override {
    SparseMatrix a;
    if (!describe(p, unused_address(), a)) return 0;
    return spmm_workspace_bytes(p, d, a, algorithm_);
  }

  int64_t prepared_bytes(const Problem& p, const Device&) const override {
    return blocked_ell(p).bytes;
  }
  Status prepare(const Problem& p, const Launch& l) const override {
    return convert_to_blocked_ell(p, l, l.prepared);
  }

  Status launch(const Problem& p, const Launch& l) const override {
    SparseMatrix a;
    if (Status s = describe(p, l.prepared, a); !s) return s;
    return spmm(p, l, a, algorithm_);
  }

  // cuSPARSE documents repeatable results for BSR, not for Blocked-ELL.
  bool deterministic() const override { return false; }
  // The empty slots hold zeros; whether cuSPARSE multiplies them is not documented.
  bool multiplies_padding() const override { return true; }

 private:
  cusparseSpMMAlg_t algorithm_;
};

const CuSparseBlockedEll kAlg1{"cusparse_blocked_ell/alg1", CUSPARSE_SPMM_BLOCKED_ELL_ALG1};
const Registration kRegisterAlg1{kAlg1};

}  // namespace
}  // namespace sparse_autotune
