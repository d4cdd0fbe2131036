// attention_tiled_sm80: the portable kernel for half types; see tiled_attention_sm80.cuh.
//
// Requires: compute capability 8.0, heads of 64 or 128, blocks whose sides are multiples of 16.
// Wins: on GPUs older or newer than Hopper.
#include "kernels/cuda/attention/attention_requirements.h"
#include "kernels/cuda/attention/tiled_launch_sm80.cuh"

namespace sparse_autotune {
namespace {

constexpr int kWarps = 4;

class AttentionTiledSm80 final : public attention::Variant {
 public:
  using Variant::Variant;

  Support supports(const attention::Problem& p, const Device& d) const override {
    if (auto s = tiled_by_mma(p, d, kRows); !s) return s;
    return with_half_and_dim(p, [&]<typename T, int kDim>(T*, std::integral_constant<int, kDim>) {
      using Tile = AttentionTileSm80<kDim, kWarps>;
      return attention_code_sm80<T, Tile>.runs_on(d, Tile::kSharedBytes);
    });
  }

  double estimate_us(const attention::Problem& p, const Device& d) const override {
    return attention_us(p, kRows, 0.2 * d.tensor_tflops, 6);
  }

  int64_t workspace_bytes(const attention::Problem& p, const Device&) const override {
    const AttentionForward a = attention::forward_arguments(p, {});
    return tile_lists_bytes(a.mask, a.shape, kRows, p.capacity);
  }

  Status launch(const attention::Problem& p, const attention::Launch& l) const override {
    const AttentionForward a = attention::forward_arguments(p, l);
    return with_half_and_dim(p, [&]<typename T, int kDim>(T*, std::integral_constant<int, kDim>) {
      return launch_attention_sm80<T, AttentionTileSm80<kDim, kWarps>>(a, name());
    });
  }

 private:
  static constexpr int kRows = AttentionTileSm80<128, kWarps>::kRows;
};

const AttentionTiledSm80 kAttentionTiledSm80{DeviceType::kCuda, "attention_tiled_sm80/64x64"};
const Registration kRegisterAttentionTiledSm80{kAttentionTiledSm80};

}  // namespace
}  // namespace sparse_autotune
