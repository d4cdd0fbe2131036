// A variant of attention_backward_sm90 with one shape of tile.
#pragma once

#include "kernels/cuda/attention/attention_backward_launch_sm90.cuh"
#include "kernels/cuda/attention/attention_requirements.h"
#include "kernels/cuda/host/tile_counters.h"

namespace sparse_autotune {

// TileOf<128> and TileOf<64> differ in the head dimension, perhaps in stages. `share`: of the
// device's tensor-core rate, that long columns reach.
template <template <int> typename TileOf>
class AttentionBackwardSm90 final : public attention::Variant {
 public:
  AttentionBackwardSm90(std::string_view name, double share)
      : Variant(DeviceType::kCuda, name, attention::Pass::kBackward), share_(share) {}

  Support supports(const attention::Problem& p, const Device& d) const override {
    if (auto s = halves_on_hopper(p, d); !s) return s;
    if (TileOf<64>::kColumns != TileOf<128>::kColumns && p.dim == 64) {
      return Support::no("has no tile of its own for heads of 64");
    }
    return with_half_and_dim(p, [&]<typename T, int kDim>(T*, std::integral_constant<int, kDim>) {
      if (auto s = sides_fit<TileOf<kDim>>(p); !s) return s;
      return attention_backward_code_sm90<T, TileOf<kDim>>.runs_on(d, TileOf<kDim>::kSharedBytes);
    });
  }

  double estimate_us(const attention::Problem& p, const Device& d) const override {
    using Tile = TileOf<128>;
    // Sums of dq are cleared, and read once more.
    const double passes = all_pairs(p) / static_cast<double>(p.columns) * p.dim * 16;  // bytes
    return attention_us(p, Tile::kStepRows, share_ * d.tensor_tflops, 15) +
           passes / (d.memory_gbps * 850);
  }

  int64_t workspace_bytes(const attention::Problem& p, const Device&) const override {
    using Tile = TileOf<128>;
    const AttentionBackward a = attention::backward_arguments(p, {});
    const int64_t sums = row_sums_bytes(a.shape, a.mask);
    if constexpr (!Tile::kMerges) return sums;
    return sums +
           tile_lists_bytes(by_column(a), by_column(a.shape), Tile::kColumns, p.row_capacity);
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
  // Rows of another block column of a tile have a weight of zero.
  bool multiplies_padding() const override { return TileOf<128>::kMerges; }

 private:
  template <typename Tile>
  static Support sides_fit(const attention::Problem& p) {
    if constexpr (Tile::kMerges) {
      if (!has_mask(p) || p.block_n < 16 || p.block_n >= Tile::kColumns ||
          Tile::kColumns % p.block_n != 0) {
        return Support::no("merges block columns of 16 or 32 columns");
      }
      if (auto s = has_tile_lists(p); !s) return s;
    }
    return block_sides_are_multiples_of(p, Tile::kPiece, Tile::kMerges ? 16 : Tile::kColumns);
  }

  double share_;
};

}  // namespace sparse_autotune
