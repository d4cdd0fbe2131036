// attention_sm90: Hopper's attention where block rows have 128 rows or more, or there is no mask.
//
// All consumers of a thread block share each tile of k and v. Data path: TMA -> swizzled shared
// memory -> wgmma; exponentials stay in registers as the operand of the second product; results
// leave by TMA from where q was. Requires: compute capability 9.0, half types, heads of 64 or 128.
// Wins: wherever it runs.
#include "kernels/cuda/attention/attention_variant_sm90.cuh"

namespace sparse_autotune {
namespace {

template <int kDim>
using Tile = AttentionTile<kDim, 2, 128, kDim == 64 ? 8 : 5, 2>;
// 1.02 to 1.04 of the time where nothing is split, heads of 128 (H200).
template <int kDim>
using SplitTile = AttentionTile<kDim, 2, 128, kDim == 64 ? 8 : 5, 2, 64, false, true>;

// Heads of 64 leave registers for a third consumer, of tiles of 192 rows.
template <int>
using Three = AttentionTile<64, 3, 128, 8, 2, 64, false, true>;

const AttentionSm90<Tile, SplitTile> kPieces64{"attention_sm90/p64", 0.67};
const AttentionSm90<Three> kThree{"attention_sm90/three", 0.78};
const Registration kRegisterPieces64{kPieces64}, kRegisterThree{kThree};

}  // namespace
}  // namespace sparse_autotune
