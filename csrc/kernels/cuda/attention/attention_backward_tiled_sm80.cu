// attention_backward_tiled_sm80: the portable gradients for half types; see
// tiled_backward_sm80.cuh.
//
// Requires: compute capability 8.0, heads of 64 or 128, blocks whose sides are multiples of 16.
// Wins: on GPUs older or newer than Hopper, and where results must be repeatable.
#include "kernels/cuda/attention/attention_requirements.h"
#include "kernels/cuda/attention/tiled_backward_launch_sm80.cuh"

namespace sparse_autotune {
namespace {

class AttentionBackwardTiledSm80 final : public attention::Variant {
 public:
  using Variant::Variant;

  Support supports(const attention::Problem& p, const Device& d) const override {
    if (auto s = tiled_by_mma(p, d, kTiledBackwardRows); !s) return s;
    return with_half_and_dim(p, [&]<typename T, int kDim>(T*, std::integral_constant<int, kDim>) {
      constexpr int kShared = TiledBackward<T, kDim, false>::kSharedBytes;
      if (auto s = attention_backward_code_sm80<T, kDim, false>.runs_on(d, kShared); !s) return s;
      return attention_backward_code_sm80<T, kDim, true>.runs_on(d, kShared);
    });
  }

  double estimate_us(const attention::Problem& p, const Device& d) const override {
    return attention_us(p, kTiledBackwardRows, 0.13 * d.tensor_tflops, 15);
  }

  int64_t workspace_bytes(const attention::Problem& p, const Device&) const override {
    return tiled_backward_workspace_bytes(attention::backward_arguments(p, {}), p.capacity,
                                          p.row_capacity);
  }

  Status launch(const attention::Problem& p, const attention::Launch& l) const override {
    const AttentionBackward a = attention::backward_arguments(p, l);
    return with_half_and_dim(p, [&]<typename T, int kDim>(T*, std::integral_constant<int, kDim>) {
      return launch_tiled_backward_sm80<T, kDim>(a, name());
    });
  }
};

const AttentionBackwardTiledSm80 kAttentionBackwardTiledSm80{
    DeviceType::kCuda, "attention_backward_tiled_sm80/64x64", attention::Pass::kBackward};
const Registration kRegisterAttentionBackwardTiledSm80{kAttentionBackwardTiledSm80};

}  // namespace
}  // namespace sparse_autotune
