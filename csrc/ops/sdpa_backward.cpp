// The gradients of PyTorch's scaled_dot_product_attention on the CPU, by its flash kernel, with the
// mask as a dense one.
#include "ops/sdpa_operands.h"

namespace sparse_autotune {
namespace {

class SdpaBackward final : public attention::Variant {
 public:
  using attention::Variant::Variant;

  Support supports(const attention::Problem& p, const Device&) const override {
    if (p.has_dlse) return Support::no("torch's kernel takes no gradient of lse");
    if (p.heads != p.kv_heads) return Support::no("heads of q share heads of k");
    return Support::yes();
  }

  double estimate_us(const attention::Problem& p, const Device& d) const override {
    const double flops = 10.0 * attention::all_pairs(p) * p.dim;
    const double bytes =
        attention::compulsory_bytes(p) + 2.0 * static_cast<double>(dense_mask_bytes(p));
    return roofline_us(flops, 0.3 * attention::fma_tflops(p, d), bytes, d.memory_gbps, 20.0);
  }

  // A copy of lse: see launch().
  int64_t workspace_bytes(const attention::Problem& p, const Device&) const override {
    return p.batch * p.heads * p.rows * size_of(attention::row_dtype(p));
  }
  int64_t prepared_bytes(const attention::Problem& p, const Device&) const override {
    return dense_mask_bytes(p);
  }
  Status prepare(const attention::Problem& p, const attention::Launch& l) const override {
    write_dense_mask(p, l);
    return Status::ok();
  }

  Status launch(const attention::Problem& p, const attention::Launch& l) const override {
    return guarded([&] {
      attention::Launch with_copy = l;
      with_copy.lse = l.workspace;
      std::memcpy(l.workspace, l.lse, static_cast<size_t>(workspace_bytes(p, *l.device)));
      // Where a row sees nothing, minus infinity less lse would be NaN.
      for_each_unseeing_row(p, l, [&](int64_t batch, int64_t head, int64_t row) {
        const int64_t item = size_of(attention::row_dtype(p));
        const int64_t at = ((batch * p.heads + head) * p.rows + row) * item;
        std::memset(static_cast<char*>(l.workspace) + at, 0, static_cast<size_t>(item));
      });
      const SdpaOperands o(p, with_copy);
      const bool causal = p.is_causal && !o.mask.has_value();
      const auto [dq, dk, dv] = call_torch_for<3>(
          "aten::_scaled_dot_product_flash_attention_for_cpu_backward", {}, gradient_of_out(p, l),
          o.q, o.k, o.v, o.out, o.lse, 0.0, causal, o.mask, std::optional<double>(l.scale));
      call_torch<Tensor>("aten::copy_", "", like_queries(p, l, l.dq), dq, false);
      call_torch<Tensor>("aten::copy_", "", like_keys(p, l, l.dk), dk, false);
      call_torch<Tensor>("aten::copy_", "", like_keys(p, l, l.dv), dv, false);
    });
  }

  bool multiplies_padding() const override { return true; }
};

const SdpaBackward kSdpaBackward{DeviceType::kCpu, "sdpa_backward/flash",
                                 attention::Pass::kBackward};
const Registration kRegisterSdpaBackward{kSdpaBackward};

}  // namespace
}  // namespace sparse_autotune
