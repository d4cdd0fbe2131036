// attention_sm90: Hopper's attention where block rows have 128 rows or more, or there is no mask.
//
// Both consumers of a thread block share each tile of k and v. Data path: TMA -> swizzled shared
// memory -> wgmma; exponentials stay in registers as the operand of the second product. Requires:
// compute capability 9.0, half types, heads of 64 or 128. Wins: wherever it runs. Of the two
// configurations the one in which consumers take turns wins under a causal mask.
#include "kernels/cuda/attention/attention_variant_sm90.cuh"

namespace sparse_autotune {
namespace {

template <int kDim>
using Turns128 = AttentionTile<kDim, 1, 128, kDim == 64 ? 8 : 6, 1, true>;
template <int kDim>
using Free128 = AttentionTile<kDim, 1, 128, kDim == 64 ? 8 : 6, 1, false>;

const AttentionSm90<Turns128> kTurns{"attention_sm90/turns", 0.66};
const AttentionSm90<Free128> kFree{"attention_sm90/free", 0.67};
const Registration kRegisterTurns{kTurns}, kRegisterFree{kFree};

}  // namespace
}  // namespace sparse_autotune
