// The GPU's sampled product by aten::mm (cuBLAS) under torch's own precision settings: all of
// C * B^T, some rows at a time, then the stored blocks. Its scratch is the dense product, up to
// 128 MiB of it. Wins at high density.
#include "kernels/cuda/convert/gather_blocks.h"
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

const SampledCublasDense kSampledCublasDense{DeviceType::kCuda, "sampled_cublas_dense/mm",
                                             Op::kSampled};
const Registration kRegisterSampledCublasDense{kSampledCublasDense};

}  // namespace
}  // namespace sparse_autotune
