// A variant of attention_sm90 with one shape of tile.
#pragma once

#include "kernels/cuda/attention/attention_launch_sm90.cuh"
#include "kernels/cuda/attention/attention_requirements.h"
#include "kernels/cuda/host/tile_counters.h"

namespace sparse_autotune {

// TileOf<128> and TileOf<64> differ in the head dimension, perhaps in stages. SplitTileOf: for
// launches in which items are split; a kernel that can split them may be slower. `share`: of the
// device's tensor-core rate, that long rows reach.
template <template <int> typename TileOf, template <int> typename SplitTileOf = TileOf>
class AttentionSm90 final : public attention::Variant {
 public:
  AttentionSm90(std::string_view name, double share)
      : Variant(DeviceType::kCuda, name), share_(share) {}

  Support supports(const attention::Problem& p, const Device& d) const override {
    if (auto s = halves_on_hopper(p, d); !s) return s;
    if (Tile::kUsers == 3 && (has_mask(p) || p.dim != 64)) {
      return Support::no("takes heads of 64 without a mask");
    }
    if constexpr (Tile::kMerges) {
      if (!has_mask(p) || p.block_m < 16 || p.block_m >= Tile::kRows ||
          Tile::kRows % p.block_m != 0) {
        return Support::no("merges block rows of 16 or 32 rows");
      }
      if (auto s = has_tile_lists(p); !s) return s;
    }
    if (auto s = block_sides_are_multiples_of(p, Tile::kMerges ? 16 : Tile::kRows, Tile::kPiece);
        !s) {
      return s;
    }
    const auto runs = [&]<typename T, typename Of>() {
      return attention_code_sm90<T, Of>.runs_on(d, Of::kSharedBytes);
    };
    if (auto s = with_tile<TileOf>(p, runs); !s) return s;
    return with_tile<SplitTileOf>(p, runs);
  }

  double estimate_us(const attention::Problem& p, const Device& d) const override {
    // Without a mask rows of a last tile that do not exist are multiplied, too.
    constexpr int64_t kRows = Tile::kRows;
    const double there = has_mask(p) ? 1.0
                                     : static_cast<double>(p.rows) /
                                           static_cast<double>(ceil_div(p.rows, kRows) * kRows);
    return attention_us(p, kRows, there * share_ * d.tensor_tflops, 6);
  }

  int64_t workspace_bytes(const attention::Problem& p, const Device& d) const override {
    return lists_bytes(p, Tile::kRows) + split_of(p, d).bytes();
  }

  Status launch(const attention::Problem& p, const attention::Launch& l) const override {
    const ItemSplit split = split_of(p, *l.device);
    const auto launch = [&]<typename T, typename Of>() {
      return launch_attention_sm90<T, Of>(p, l, split, name());
    };
    return split.items > 0 ? with_tile<SplitTileOf>(p, launch) : with_tile<TileOf>(p, launch);
  }

  // Columns of another block row of a tile have a weight of zero.
  bool multiplies_padding() const override { return Tile::kMerges; }

 private:
  using Tile = TileOf<128>;

  static ItemSplit split_of(const attention::Problem& p, const Device& d) {
    if (!SplitTileOf<128>::kSplits) return {};
    return split_items(p, d, Tile::kRows, Tile::kPipelines, Tile::kSplits ? 0.01 : 0.05);
  }

  // Calls it with the problem's type and tile.
  template <template <int> typename Of, typename Function>
  static auto with_tile(const attention::Problem& p, Function&& call) {
    return with_half_and_dim(p, [&]<typename T, int kDim>(T*, std::integral_constant<int, kDim>) {
      return call.template operator()<T, Of<kDim>>();
    });
  }

  double share_;
};

}  // namespace sparse_autotune
