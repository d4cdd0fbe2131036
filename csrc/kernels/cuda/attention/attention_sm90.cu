// attention_sm90: Hopper's attention where block rows have 128 rows or more, or there is no mask.
//
// Both consumers of a thread block share each tile of k and v. Data path: TMA -> swizzled shared
// memory -> wgmma; exponentials stay in registers as the operand of the second product. Requires:
// compute capability 9.0, half types, heads of 64 or 128. Wins: wherever it runs, but for few rows
// without a mask, where cuDNN's kernel may win.
#include "kernels/cuda/attention/attention_variant_sm90.cuh"

namespace sparse_autotune {
namespace {

template <int kDim>
using Masked = AttentionTile<kDim, 1, 128, kDim == 64 ? 8 : 6, 1>;
// Rows of q that come early save 1 to 3% of the time of heads of 128, but what a mask stores lies
// scattered, and then copies of k and v need all stages. Heads of 64 take 0.5% longer.
template <int kDim>
using Whole = AttentionTile<kDim, 1, 128, kDim == 64 ? 8 : 5, kDim == 64 ? 1 : 2>;

const AttentionSm90<Masked, Whole> kPieces64{"attention_sm90/p64", 0.67};
const Registration kRegisterPieces64{kPieces64};

}  // namespace
}  // namespace sparse_autotune
