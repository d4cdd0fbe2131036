// attention_backward_sm90: Hopper's gradients of attention, where block columns have 64 columns or
// a multiple.
//
// A thread block takes 64 or 128 rows of k and v and walks along the rows of q that see them; it
// adds each step's dq to fp32 sums in global memory, in no fixed order, so results differ in the
// last bits from one launch to the next. A pass before it multiplies dout by out, one after it
// rounds dq. Data path: TMA -> swizzled shared memory -> wgmma; p and ds are operands in registers.
// Requires: compute capability 9.0, half types, heads of 64 or 128. Wins: wherever repeatable
// results are not asked for.
#include "kernels/cuda/attention/attention_backward_launch_sm90.cuh"
#include "kernels/cuda/attention/attention_requirements.h"
#include "kernels/cuda/host/tile_counters.h"

namespace sparse_autotune {
namespace {

template <template <int> typename TileOf>
class AttentionBackwardSm90 final : public attention::Variant {
 public:
  AttentionBackwardSm90(std::string_view name, double share)
      : Variant(DeviceType::kCuda, name, attention::Pass::kBackward), share_(share) {}

  Support supports(const attention::Problem& p, const Device& d) const override {
    if (auto s = on_hopper(d); !s) return s;
    if (auto s = halves_by_16_bytes(p); !s) return s;
    if (auto s = copied_by_tma(p); !s) return s;
    if (auto s = block_sides_are_multiples_of(p, kStepRows, TileOf<128>::kColumns); !s) return s;
    if (TileOf<64>::kColumns != TileOf<128>::kColumns && p.dim == 64) {
      return Support::no("has no tile of its own for heads of 64");
    }
    return with_half_and_dim(p, [&]<typename T, int kDim>(T*, std::integral_constant<int, kDim>) {
      return attention_backward_code_sm90<T, TileOf<kDim>>.runs_on(d, TileOf<kDim>::kSharedBytes);
    });
  }

  double estimate_us(const attention::Problem& p, const Device& d) const override {
    // Sums of dq are cleared, and read once more.
    const double passes = all_pairs(p) / static_cast<double>(p.columns) * p.dim * 16;  // bytes
    return attention_us(p, kStepRows, share_ * d.tensor_tflops, 15) +
           passes / (d.memory_gbps * 850);
  }

  int64_t workspace_bytes(const attention::Problem& p, const Device&) const override {
    const AttentionBackward a = attention::backward_arguments(p, {});
    return BackwardWorkspace(a.shape, a.mask).bytes();
  }

  Status launch(const attention::Problem& p, const attention::Launch& l) const override {
    unsigned* counter = tile_counter(l.device->ordinal, static_cast<cudaStream_t>(l.stream));
    const AttentionBackward a = attention::backward_arguments(p, l);
    return with_half_and_dim(p, [&]<typename T, int kDim>(T*, std::integral_constant<int, kDim>) {
      return launch_attention_backward_sm90<T, TileOf<kDim>>(a, p.dtype, *l.device, counter,
                                                             name());
    });
  }

  bool deterministic() const override { return false; }

 private:
  double share_;
};
template <int kDim>
using Columns128 = AttentionBackwardTile<kDim, kDim == 128 ? 1 : 2, 2, 2>;
template <int kDim>
using Columns64 = AttentionBackwardTile<kDim, 2, 2, kDim == 128 ? 1 : 2>;

const AttentionBackwardSm90<Columns128> kColumns128{"attention_backward_sm90/columns128", 0.5};
const AttentionBackwardSm90<Columns64> kColumns64{"attention_backward_sm90/columns64", 0.4};
const Registration kRegisterColumns128{kColumns128}, kRegisterColumns64{kColumns64};

}  // namespace
}  // namespace sparse_autotune
