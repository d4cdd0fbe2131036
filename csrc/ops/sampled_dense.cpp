// The CPU's sampled product by torch's own mm (MKL or oneDNN): all of C * B^T, some rows at a time,
// then the stored blocks. Wins above some 30 to 60% density, and for bf16 where oneDNN has AMX.
#include "kernels/cpu/convert/layouts_of_a.h"
#include "ops/sampled_product.h"

namespace sparse_autotune {
namespace {

class SampledDense final : public Variant {
 public:
  using Variant::Variant;

  Support supports(const Problem& p, const Device&) const override { return product_supports(p); }

  double estimate_us(const Problem& p, const Device& d) const override {
    const double flops = 2.0 * p.m * p.k * p.n * p.batch;
    const double product = 2.0 * p.m * p.k * size_of(p.dtype) * p.batch;
    return roofline_us(flops, 0.7 * peak_tflops(p, d), compulsory_bytes(p) + product, d.memory_gbps,
                       5.0);
  }

  int64_t workspace_bytes(const Problem& p, const Device&) const override {
    return product_bytes(p);
  }

  Status launch(const Problem& p, const Launch& l) const override {
    return sample_product(p, l, [&](int64_t first, int64_t rows, bool add) {
      gather_blocks_cpu(p, l, l.workspace, first, rows, add);
      return Status::ok();
    });
  }
};

const SampledDense kSampledDense{DeviceType::kCpu, "sampled_dense/mm", Op::kSampled};
const Registration kRegisterSampledDense{kSampledDense};

}  // namespace
}  // namespace sparse_autotune
