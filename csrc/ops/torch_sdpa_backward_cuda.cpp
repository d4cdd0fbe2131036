// The gradients of PyTorch's scaled_dot_product_attention on a GPU. Like the forward pass each
// backend takes `out` and lse of whoever computed them.
#include "ops/sdpa_operands.h"
#include "ops/torch_sdpa_cuda.h"

namespace sparse_autotune {
namespace {

class TorchSdpaBackward final : public TorchSdpa {
 public:
  TorchSdpaBackward(std::string_view name, SdpaBackend backend)
      : TorchSdpa(name, backend, attention::Pass::kBackward) {}

  Status launch(const attention::Problem& p, const attention::Launch& l) const override {
    const char* const name = backend_ == SdpaBackend::kFlash
                                 ? "sparse_autotune::sdpa_flash_backward"
                                 : "sparse_autotune::sdpa_efficient_backward";
    return guarded([&] {
      const SdpaOperands o(p, l);
      const auto gradients =
          call_torch_for<3>(name, {}, gradient_of_out(p, l), o.q, o.k, o.v, o.out, o.lse,
                            p.is_causal, static_cast<double>(l.scale));
      give_results(l, gradients_of(p, l), gradients);
    });
  }

  bool deterministic() const override { return false; }  // they add up dq atomically

 private:
  const Registration registration_{*this};
};

// cuDNN's gradients take no part. Torch keeps what cuDNN built for a problem, whatever the strides
// of `out` are: a call with another `out` made torch's own later gradients wrong (2.11, seen on an
// H100).
const TorchSdpaBackward kFlash{"torch_sdpa_backward/flash", SdpaBackend::kFlash};
const TorchSdpaBackward kEfficient{"torch_sdpa_backward/efficient", SdpaBackend::kEfficient};

}  // namespace
}  // namespace sparse_autotune
