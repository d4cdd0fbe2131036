// Half precision in blocks of 4 x 4, on tensor cores, from Ampere on: mma_eights_sm80 with a piece
// of 8 x 8 made of a block of one block row and a block of the next, wherever they are.
//
// A tile of C is 128 block rows by 64 columns, a warp's strips are pairs of block rows. Half of
// what is multiplied are zeros, which an infinity in B makes NaN. Data path: as mma_eights_sm80's.
// Requires: fp16 or bf16, blocks of 4 x 4, values and B aligned to 16 bytes.
// Wins: many columns, densities of some 2%. Bound as mma_eights_sm80, and by blocks that are
// without a partner in their stage.
#include "kernels/cuda/product/small_blocks/mma_eights_launch.cuh"

namespace sparse_autotune {
namespace {

class MmaFours final : public EightsProduct {
 public:
  using EightsProduct::EightsProduct;

  bool multiplies_padding() const override { return true; }

 private:
  Support takes_blocks(const Problem& p) const override { return blocks_are(p, 4, 4); }

  Registration registration_{*this};
};

const MmaFours kM512{
    "mma_fours_sm80/m512", eights_shape<FoursBlocks, 16, 256, 3, 1, 1>(), {1.4, 0.0052, 0.06}};
const MmaFours kM512X2{"mma_fours_sm80/m512_x2", kFoursSmall, {1.5, 0.0062, 0.06}};

}  // namespace
}  // namespace sparse_autotune
