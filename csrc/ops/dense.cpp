// The CPU's dense product: A densified, then torch's own mm (MKL or oneDNN) for each matrix of a
// batch, or bmm for all: a call costs oneDNN, which computes half types, as much as a small matrix.
// Wins above some 30 to 60% density, and wherever a vendor kernel for the dtype beats ours.
#include "kernels/cpu/convert/layouts_of_a.h"
#include "kernels/cpu/shared/epilogue.h"
#include "ops/dispatched.h"

namespace sparse_autotune {
namespace {

class Dense final : public Variant {
 public:
  Dense(std::string_view name, bool batched) : Variant(DeviceType::kCpu, name), batched_(batched) {}

  Support supports(const Problem& p, const Device&) const override {
    if (!batched_) return Support::yes();
    if (p.batch == 1) return Support::no("multiplies batches, this is one matrix");
    // Others torch computes element by element in half types: seconds.
    if (p.c_layout != Layout::kRowMajor || p.ldc != p.n || p.c_batch_stride != p.m * p.n) {
      return Support::no("the result's matrices do not lie one after another, in rows");
    }
    return Support::yes();
  }

  double estimate_us(const Problem& p, const Device& d) const override {
    const double flops = 2.0 * p.m * p.k * p.n * p.batch;
    const double conversion = p.frozen ? 0.0 : static_cast<double>(prepared_bytes(p, d));
    return roofline_us(flops, 0.7 * peak_tflops(p, d), compulsory_bytes(p) + conversion,
                       d.memory_gbps, batched_ ? 5.0 : 5.0 * static_cast<double>(p.batch));
  }

  int64_t prepared_bytes(const Problem& p, const Device&) const override {
    return p.m * p.k * size_of(p.dtype);
  }

  Status prepare(const Problem& p, const Launch& l) const override {
    densify_cpu(p, l, l.prepared);
    return Status::ok();
  }

  Status launch(const Problem& p, const Launch& l) const override {
    const Layout layout = densified_layout(p);
    Status status = batched_ ? bmm_into_c(layout, p, l) : mm_into_c(densified(p, l, layout), p, l);
    if (status) apply_epilogue_cpu(p, l);
    return status;
  }

  bool multiplies_padding() const override { return true; }

 private:
  bool batched_;
  Registration registration_{*this};
};

const Dense kEach{"dense/mm", false};
const Dense kBatch{"dense/bmm", true};

}  // namespace
}  // namespace sparse_autotune
