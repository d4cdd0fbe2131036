// attention_backward_sm90: Hopper's gradients of attention, where block columns have 64 columns or
// a multiple.
//
// A thread block takes 64 or 128 rows of k and v and walks along the rows of q that see them; it
// adds each step's dq to fp32 sums in global memory, in no fixed order, so results differ in the
// last bits from one launch to the next. A pass before it multiplies dout by out, one after it
// rounds dq. Data path: TMA -> swizzled shared memory -> wgmma; p and ds are operands in registers.
// Requires: compute capability 9.0, half types, heads of 64 or 128. Wins: wherever repeatable
// results are not asked for.
#include "kernels/cuda/attention/attention_backward_variant_sm90.cuh"

namespace sparse_autotune {
namespace {

template <int kDim>
using Columns128 = std::conditional_t<kDim == 128, AttentionBackwardTile<128, 1, 3, 2, 1>,
                                      AttentionBackwardTile<64, 1, 2, 2, 1, 128>>;
template <int kDim>
using Columns64 = AttentionBackwardTile<kDim, 2, 2, kDim == 128 ? 1 : 2, kDim == 128 ? 1 : 2>;

const AttentionBackwardSm90<Columns128> kColumns128{"attention_backward_sm90/columns128", 0.58};
const AttentionBackwardSm90<Columns64> kColumns64{"attention_backward_sm90/columns64", 0.42};
const Registration kRegisterColumns128{kColumns128}, kRegisterColumns64{kColumns64};

}  // namespace
}  // namespace sparse_autotune
