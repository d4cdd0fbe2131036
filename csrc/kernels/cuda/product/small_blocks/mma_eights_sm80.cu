// Half precision in blocks with a side of 8, on tensor cores, from Ampere on.
//
// A persistent thread block owns tiles of C: 64 strips of 8 rows by 64 columns. It walks all of B's
// rows in stages, whatever blocks there are; each of its warps owns 4 strips and multiplies the
// blocks that these have in a stage, as pieces of 8 x 8, by the stage's rows of B. mma.sync
// computes C^T: 16 columns of C by the 8 rows of a strip, over a k of 16 that two pieces make up,
// wherever in the stage they are.
// Data path: cp.async of B into a ring of 3 stages of 256 rows, and of pieces into places of each
// warp -> ldmatrix -> mma.sync, fp32 sums -> four lanes exchange words -> C.
// Requires: fp16 or bf16, block sides of 8 times a power of two, values and B aligned to 16 bytes.
// Wins: blocks of 8, many columns, up to some 10%. Bound by instructions: of a stage, whatever it
// holds, where blocks are few, else of multiplying a piece.
#include <bit>

#include "kernels/cuda/product/small_blocks/mma_eights_launch.cuh"

namespace sparse_autotune {
namespace {

class MmaEights final : public EightsProduct {
 public:
  using EightsProduct::EightsProduct;

 private:
  Support takes_blocks(const Problem& p) const override {
    if (eights_of_two(p.block_m) && eights_of_two(p.block_k)) return Support::yes();
    return Support::no("needs block sides of 8 times a power of two, got " +
                       block_text(p.block_m, p.block_k));
  }
  static bool eights_of_two(int64_t side) {
    return side >= 8 && std::has_single_bit(static_cast<uint64_t>(side));
  }

  Registration registration_{*this};
};

const MmaEights kM512{
    "mma_eights_sm80/m512", eights_shape<EightsBlocks, 16, 256, 3, 1, 1>(), {0.95, 0.0075, 0.06}};
const MmaEights kM512K512{"mma_eights_sm80/m512_k512", kEightsDeep, {1.5, 0.0095, 0.06}};
const MmaEights kM512K128{"mma_eights_sm80/m512_k128", kEightsSmall, {0.9, 0.0098, 0.06}};

}  // namespace
}  // namespace sparse_autotune
