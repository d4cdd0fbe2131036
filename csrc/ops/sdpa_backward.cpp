// The gradients of PyTorch's scaled_dot_product_attention on the CPU, by its flash kernel, with the
// mask as a dense one.
#include "ops/sdpa_operands.h"

namespace sparse_autotune {
namespace {

class SdpaBackward final : public DenseMaskSdpa {
 public:
  using DenseMaskSdpa::DenseMaskSdpa;

  Support supports(const attention::Problem& p, const Device&) const override {
    if (p.has_dlse) return Support::no("torch's kernel takes no gradient of lse");
    if (p.heads != p.kv_heads) return Support::no("heads of q share heads of k");
    return Support::yes();
  }

  // A copy of lse: see launch().
  int64_t workspace_bytes(const attention::Problem& p, const Device&) const override {
    return p.batch * p.heads * p.rows * size_of(attention::row_dtype(p));
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
      const auto gradients = call_torch_for<3>(
          "aten::_scaled_dot_product_flash_attention_for_cpu_backward", {}, gradient_of_out(p, l),
          o.q, o.k, o.v, o.out, o.lse, 0.0, causal, o.mask, std::optional<double>(l.scale));
      give_results(l, gradients_of(p, l), gradients);
    });
  }
};

const SdpaBackward kSdpaBackward{DeviceType::kCpu, "sdpa_backward/flash",
                                 attention::Pass::kBackward};
const Registration kRegisterSdpaBackward{kSdpaBackward};

}  // namespace
}  // namespace sparse_autotune
