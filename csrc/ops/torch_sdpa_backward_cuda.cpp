// The gradients of PyTorch's scaled_dot_product_attention on a GPU, by FlashAttention 2, of
// attention without a mask. Like the forward pass it takes `out` and lse of whoever computed them.
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <array>

#include "ops/sdpa_operands.h"

namespace sparse_autotune {
namespace {

class TorchSdpaBackward final : public attention::Variant {
 public:
  using attention::Variant::Variant;

  Support supports(const attention::Problem& p, const Device& d) const override {
    if (attention::has_mask(p)) return Support::no("it computes every block");
    if (d.compute_capability < 80) return Support::no("needs compute capability 8.0");
    if (!is_half(p.dtype)) return Support::no("needs fp16 or bf16");
    if (p.has_dlse) return Support::no("torch's kernel takes no gradient of lse");
    if (p.dim % 8 != 0) return Support::no("needs heads of a multiple of 8 numbers");
    if (std::min({p.q_alignment, p.k_alignment, p.v_alignment, p.dout_alignment}) < 16) {
      return Support::no("needs addresses and strides that are multiples of 16 bytes");
    }
    if (p.is_causal && p.rows != p.columns) {
      return Support::no("its causal diagonal ends at the bottom right corner");
    }
    return Support::yes();
  }

  double estimate_us(const attention::Problem& p, const Device& d) const override {
    const double peak = peak_tflops(p.dtype, p.allow_tf32, d);
    return roofline_us(attention::nnz_flops(p), 0.3 * peak, attention::compulsory_bytes(p),
                       d.memory_gbps, 10.0);
  }

  Status launch(const attention::Problem& p, const attention::Launch& l) const override {
    return guarded([&] {
      const SdpaOperands o(p, l);
      // Of sequences of equal length there are no cumulative lengths: tensors without a value.
      const Tensor none, seed = new_bytes(o.q, 16);
      const auto gradients = call_torch_for<3>(
          "aten::_scaled_dot_product_flash_attention_backward", {}, gradient_of_out(p, l), o.q, o.k,
          o.v, o.out, o.lse, none, none, p.rows, p.columns, 0.0, p.is_causal, seed, seed,
          std::optional<double>(l.scale));
      give_gradients(p, l, gradients);
    });
  }

  bool captures() const override { return false; }       // torch's allocator serves it
  bool deterministic() const override { return false; }  // it adds up dq atomically
  bool multiplies_padding() const override { return true; }
};

const TorchSdpaBackward kTorchSdpaBackward{DeviceType::kCuda, "torch_sdpa_backward/flash",
                                           attention::Pass::kBackward};
const Registration kRegisterTorchSdpaBackward{kTorchSdpaBackward};

}  // namespace
}  // namespace sparse_autotune
