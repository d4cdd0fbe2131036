// PyTorch's scaled_dot_product_attention on a GPU, one variant for each of its backends that gives
// lse: FlashAttention 2, cuDNN, and the memory-efficient one. They compute every block, so they
// take attention without a mask, causal or not.
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <array>

#include "ops/sdpa_operands.h"

namespace sparse_autotune {
namespace {

enum class Backend : uint8_t { kFlash, kCudnn, kEfficient };

class TorchSdpa final : public attention::Variant {
 public:
  TorchSdpa(std::string_view name, Backend backend)
      : Variant(DeviceType::kCuda, name), backend_(backend) {}

  Support supports(const attention::Problem& p, const Device& d) const override {
    if (attention::has_mask(p)) return Support::no("it computes every block");
    if (d.compute_capability < 80) return Support::no("needs compute capability 8.0");
    const bool efficient = backend_ == Backend::kEfficient;
    if (!is_half(p.dtype) && !(efficient && p.dtype == DType::kFloat32)) {
      return Support::no(efficient ? "needs fp16, bf16 or fp32" : "needs fp16 or bf16");
    }
    if (p.dim % 8 != 0 || (backend_ == Backend::kCudnn && p.dim > 128)) {
      return Support::no("needs heads of a multiple of 8 numbers, cuDNN of at most 128");
    }
    if (std::min({p.q_alignment, p.k_alignment, p.v_alignment}) < 16) {
      return Support::no("needs addresses and strides that are multiples of 16 bytes");
    }
    if (p.is_causal && p.rows != p.columns && !efficient) {
      return Support::no("its causal diagonal ends at the bottom right corner");
    }
    if (p.heads != p.kv_heads && backend_ != Backend::kFlash) {
      return Support::no("heads of q share heads of k");
    }
    return Support::yes();
  }

  double estimate_us(const attention::Problem& p, const Device& d) const override {
    const double share = backend_ == Backend::kCudnn   ? 0.6
                         : backend_ == Backend::kFlash ? 0.35
                                                       : 0.25;
    const double peak = peak_tflops(p.dtype, p.allow_tf32, d);
    return roofline_us(attention::nnz_flops(p), share * peak, attention::compulsory_bytes(p),
                       d.memory_gbps, 10.0);
  }

  Status launch(const attention::Problem& p, const attention::Launch& l) const override {
    return guarded([&] {
      const SdpaOperands o(p, l);
      const std::optional<double> scale = l.scale;
      const std::optional<Tensor> no_bias;
      std::array<Tensor, 2> found;
      switch (backend_) {
        case Backend::kFlash:
          found = call_torch_for<2>("sparse_autotune::sdpa_flash", {}, o.q, o.k, o.v, p.is_causal,
                                    static_cast<double>(l.scale));
          break;
        case Backend::kCudnn:
          found = call_torch_for<2>("sparse_autotune::sdpa_cudnn", {}, o.q, o.k, o.v, p.is_causal,
                                    static_cast<double>(l.scale));
          break;
        case Backend::kEfficient:
          found = call_torch_for<2, 4>("aten::_scaled_dot_product_efficient_attention", {2, 3}, o.q,
                                       o.k, o.v, no_bias, true, 0.0, p.is_causal, scale);
          break;
      }
      call_torch<Tensor>("aten::copy_", "", o.out, found[0], false);
      call_torch<Tensor>("aten::copy_", "", o.lse, rows_of(found[1], p), false);
    });
  }

  bool captures() const override { return false; }  // torch's allocator serves it
  bool multiplies_padding() const override { return true; }

 private:
  // lse may be padded to whole tiles, or have a last dimension of one.
  static Tensor rows_of(const Tensor& lse, const attention::Problem& p) {
    Tensor rows = lse;
    if (rows.dim() == 4) rows = call_torch<Tensor>("aten::squeeze", "dim", rows, int64_t{3});
    if (rows.size(2) == p.rows) return rows;
    return torch::stable::narrow(rows, 2, 0, p.rows);
  }

  Backend backend_;
  Registration registration_{*this};
};

const TorchSdpa kFlash{"torch_sdpa/flash", Backend::kFlash};
const TorchSdpa kCudnn{"torch_sdpa/cudnn", Backend::kCudnn};
const TorchSdpa kEfficient{"torch_sdpa/efficient", Backend::kEfficient};

}  // namespace
}  // namespace sparse_autotune
