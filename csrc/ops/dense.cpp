// The CPU's dense product: A densified, then torch's own mm (MKL or oneDNN).
// Wins above some 30 to 60% density, and wherever a vendor kernel for the dtype beats ours.
#include "kernels/cpu/apply_epilogue.h"
#include "kernels/cpu/densify.h"
#include "ops/dispatched.h"

namespace sparse_autotune {
namespace {

class Dense final : public Variant {
 public:
  using Variant::Variant;

  Support supports(const Problem&, const Device&) const override { return Support::yes(); }

  double estimate_us(const Problem& p, const Device& d) const override {
    const double flops = 2.0 * p.m * p.k * p.n * p.batch;
    const double conversion = p.frozen ? 0.0 : static_cast<double>(prepared_bytes(p, d));
    return roofline_us(flops, 0.7 * peak_tflops(p, d), compulsory_bytes(p) + conversion,
                       d.memory_gbps, 5.0);
  }

  int64_t prepared_bytes(const Problem& p, const Device&) const override {
    return p.m * p.k * size_of(p.dtype);
  }

  Status prepare(const Problem& p, const Launch& l) const override {
    densify_cpu(p, l, l.prepared);
    return Status::ok();
  }

  Status launch(const Problem& p, const Launch& l) const override {
    Status status = mm_into_c(densified(p, l, densified_layout(p)), p, l);
    if (status) apply_epilogue_cpu(p, l);
    return status;
  }

  bool multiplies_padding() const override { return true; }
};

const Dense kDense{DeviceType::kCpu, "dense/mm"};
const Registration kRegisterDense{kDense};

}  // namespace
}  // namespace sparse_autotune
