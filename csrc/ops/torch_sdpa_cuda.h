// PyTorch's scaled_dot_product_attention on a GPU: what its backends that give lse share, forward
// and backward. They compute every block, so they take attention without a mask, causal or not.
#pragma once

#include <cstdint>
#include <string_view>

#include "operators/attention/attention.h"

namespace sparse_autotune {

// FlashAttention 2, cuDNN's, and the memory-efficient one, which alone takes fp32.
enum class SdpaBackend : uint8_t { kFlash, kCudnn, kEfficient };

class TorchSdpa : public attention::Variant {
 public:
  TorchSdpa(std::string_view name, SdpaBackend backend,
            attention::Pass pass = attention::Pass::kForward)
      : Variant(DeviceType::kCuda, name, pass), backend_(backend) {}

  Support supports(const attention::Problem& p, const Device& d) const override;
  double estimate_us(const attention::Problem& p, const Device& d) const override;
  bool multiplies_padding() const override { return true; }

 protected:
  const SdpaBackend backend_;
};

}  // namespace sparse_autotune
