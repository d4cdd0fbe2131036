// PyTorch's scaled_dot_product_attention on a GPU: the rules of its backends, and the forward pass.
#include "ops/torch_sdpa_cuda.h"

#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <array>

#include "ops/sdpa_operands.h"

namespace sparse_autotune {

Support TorchSdpa::supports(const attention::Problem& p, const Device& d) const {
  const bool efficient = backend_ == SdpaBackend::kEfficient;
  const bool backward = p.pass == attention::Pass::kBackward;
  if (attention::has_mask(p)) return Support::no("it computes every block");
  if (d.compute_capability < 80) return Support::no("needs compute capability 8.0");
  if (!is_half(p.dtype) && !(efficient && p.dtype == DType::kFloat32)) {
    return Support::no(efficient ? "needs fp16, bf16 or fp32" : "needs fp16 or bf16");
  }
  if (p.has_dlse) return Support::no("torch's kernel takes no gradient of lse");
  if (p.nonpositive_scale && !efficient) return Support::no("needs a scale above 0");
  if (p.dim % 8 != 0 || (backend_ == SdpaBackend::kCudnn && p.dim > 128)) {
    return Support::no("needs heads of a multiple of 8 numbers, cuDNN of at most 128");
  }
  if (std::min({p.q_alignment, p.k_alignment, p.v_alignment,
                backward ? p.dout_alignment : p.q_alignment}) < 16) {
    return Support::no("needs addresses and strides that are multiples of 16 bytes");
  }
  if (p.is_causal && p.rows != p.columns && !efficient) {
    return Support::no("its causal diagonal ends at the bottom right corner");
  }
  if (p.heads != p.kv_heads && backend_ != SdpaBackend::kFlash) {
    return Support::no("heads of q share heads of k");
  }
  return Support::yes();
}

double TorchSdpa::estimate_us(const attention::Problem& p, const Device& d) const {
  const double share = backend_ == SdpaBackend::kCudnn   ? 0.6
                       : backend_ == SdpaBackend::kFlash ? 0.35
                                                         : 0.25;
  const double peak = peak_tflops(p.dtype, p.allow_tf32, d);
  return roofline_us(attention::nnz_flops(p), share * peak, attention::compulsory_bytes(p),
                     d.memory_gbps, 10.0);
}

namespace {

class TorchSdpaForward final : public TorchSdpa {
 public:
  using TorchSdpa::TorchSdpa;

  Status launch(const attention::Problem& p, const attention::Launch& l) const override {
    return guarded([&] {
      const SdpaOperands o(p, l);
      const std::optional<double> scale = l.scale;
      const std::optional<Tensor> no_bias;
      std::array<Tensor, 2> found;
      switch (backend_) {
        case SdpaBackend::kFlash:
          found = call_torch_for<2>("sparse_autotune::sdpa_flash", {}, o.q, o.k, o.v, p.is_causal,
                                    static_cast<double>(l.scale));
          break;
        case SdpaBackend::kCudnn:
          found = call_torch_for<2>("sparse_autotune::sdpa_cudnn", {}, o.q, o.k, o.v, p.is_causal,
                                    static_cast<double>(l.scale));
          break;
        case SdpaBackend::kEfficient:
          found = call_torch_for<2, 4>("aten::_scaled_dot_product_efficient_attention", {2, 3}, o.q,
                                       o.k, o.v, no_bias, true, 0.0, p.is_causal, scale);
          break;
      }
      found[1] = rows_of(found[1], p);
      give_results(l, std::array{o.out, o.lse}, found);
    });
  }

 private:
  // lse may be padded to whole tiles, or have a last dimension of one.
  static Tensor rows_of(const Tensor& lse, const attention::Problem& p) {
    Tensor rows = lse;
    if (rows.dim() == 4) rows = call_torch<Tensor>("aten::squeeze", "dim", rows, int64_t{3});
    if (rows.size(2) == p.rows) return rows;
    return torch::stable::narrow(rows, 2, 0, p.rows);
  }

  const Registration registration_{*this};
};

const TorchSdpaForward kFlash{"torch_sdpa/flash", SdpaBackend::kFlash};
const TorchSdpaForward kCudnn{"torch_sdpa/cudnn", SdpaBackend::kCudnn};
const TorchSdpaForward kEfficient{"torch_sdpa/efficient", SdpaBackend::kEfficient};

}  // namespace
}  // namespace sparse_autotune
