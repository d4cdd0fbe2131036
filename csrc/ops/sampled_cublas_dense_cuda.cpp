// The GPU's sampled product by aten::mm (cuBLAS) under torch's own precision settings: all of
// C * B^T, some rows at a time, then the stored blocks. Its scratch is the dense product, up to
// 128 MiB of it. Wins at high density.
#include "kernels/cuda/convert/move_blocks.h"
#include "ops/sampled_product.h"

namespace sparse_autotune {
namespace {

class SampledCublasDense final : public Variant {
 public:
  using Variant::Variant;

  Support supports(const Problem& p, const Device&) const override { return product_supports(p); }

  double estimate_us(const Problem& p, const Device& d) const override {
    const double product = 2.0 * p.m * p.k * size_of(p.dtype) * p.batch;
    return roofline_us(2.0 * p.m * p.k * p.n * p.batch, 0.75 * peak_tflops(p, d),
                       compulsory_bytes(p), d.memory_gbps, 5.0) +
           roofline_us(0, 0, product, d.memory_gbps, 5.0);
  }

  int64_t workspace_bytes(const Problem& p, const Device&) const override {
    return product_bytes(p);
  }

  Status launch(const Problem& p, const Launch& l) const override {
    return sample_product(p, l, [&](int64_t first, int64_t rows, bool add) {
      return gather_blocks_cuda(p, l, l.workspace, first, rows, add);
    });
  }
};

// Of half types and a batch, whose matrices' products are added up in fp32.
class SampledThroughFp32 final : public Variant {
 public:
  using Variant::Variant;

  Support supports(const Problem& p, const Device&) const override {
    return p.batch > 1 && is_half(p.dtype)
               ? Support::yes()
               : Support::no("is for sums over a batch in fp16 and bf16, which it rounds last");
  }

  double estimate_us(const Problem& p, const Device& d) const override {
    const double moved = 2.0 * p.m * p.k * size_of(DType::kFloat32) * p.batch + values_bytes(p);
    return roofline_us(2.0 * p.m * p.k * p.n * p.batch, 0.75 * peak_tflops(p, d),
                       compulsory_bytes(p), d.memory_gbps, 5.0 * p.batch) +
           roofline_us(0, 0, moved, d.memory_gbps, 5.0 * p.batch);
  }

  int64_t workspace_bytes(const Problem& p, const Device&) const override {
    return product_end(p) + p.nnzb * p.block_m * p.block_k * size_of(DType::kFloat32);
  }

  Status launch(const Problem& p, const Launch& l) const override {
    const Problem sums = in_fp32(p);
    Launch to = l;
    to.sampled = static_cast<char*>(l.workspace) + product_end(p);
    const auto gather = [&](int64_t first, int64_t rows, bool add) {
      return gather_blocks_cuda(sums, to, l.workspace, first, rows, add);
    };
    const Status status = sample_product(p, l, DType::kFloat32, product_block_rows(sums), gather);
    return status ? round_values(p, l, to.sampled) : status;
  }

 private:
  static Problem in_fp32(const Problem& p) {
    Problem sums = p;
    sums.dtype = DType::kFloat32;
    sums.values_alignment = 16;
    return sums;
  }
  static int64_t product_end(const Problem& p) {
    return ceil_div(product_bytes(in_fp32(p)), 256) * 256;
  }
};

const SampledCublasDense kSampledCublasDense{DeviceType::kCuda, "sampled_cublas_dense/mm",
                                             Op::kSampled};
const SampledThroughFp32 kThroughFp32{DeviceType::kCuda, "sampled_cublas_dense/fp32_sums",
                                      Op::kSampled};
const Registration kRegisterSampledCublasDense{kSampledCublasDense};
const Registration kRegisterThroughFp32{kThroughFp32};

}  // namespace
}  // namespace sparse_autotune
