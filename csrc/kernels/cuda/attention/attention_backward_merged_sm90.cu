// attention_backward_merged_sm90: Hopper's gradients of attention on masks of small blocks.
//
// A consumer's 64 rows of k and v are those of two or four block columns. It walks along the rows
// of q that any of them has, in pieces of 16 or 32, and gives a weight of zero to what a column's
// own block column does not store. Data path: as attention_backward_sm90. Requires: a launch that
// merges the lists of rows. Wins: blocks of 16 and 32 columns.
#include "kernels/cuda/attention/attention_backward_variant_sm90.cuh"

namespace sparse_autotune {
namespace {

template <int kDim>
using Pieces16 =
    AttentionBackwardTile<kDim, 2, 2, kDim == 128 ? 1 : 2, kDim == 128 ? 1 : 2, 64, 16, true>;
template <int kDim>
using Pieces32 =
    AttentionBackwardTile<kDim, 2, 2, kDim == 128 ? 1 : 2, kDim == 128 ? 1 : 2, 64, 32, true>;

const AttentionBackwardSm90<Pieces16> kPieces16{"attention_backward_merged_sm90/p16", 0.34};
const AttentionBackwardSm90<Pieces32> kPieces32{"attention_backward_merged_sm90/p32", 0.4};
const Registration kRegisterPieces16{kPieces16}, kRegisterPieces32{kPieces32};

}  // namespace
}  // namespace sparse_autotune
