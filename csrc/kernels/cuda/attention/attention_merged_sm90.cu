// attention_merged_sm90: Hopper's attention on masks of small blocks.
//
// A consumer's 64 rows of q are those of two or four block rows. It walks along the columns that
// any of them has, in pieces of 16 or 32 rows of k and v, and gives a weight of zero to what a
// row's own block row does not store. Data path: as attention_rows64_sm90. Requires: a launch that
// merges the lists of columns. Wins: blocks of 16 and 32 rows.
#include "kernels/cuda/attention/attention_variant_sm90.cuh"

namespace sparse_autotune {
namespace {

template <int kDim>
using Pieces16 = AttentionTile<kDim, 1, 128, kDim == 64 ? 6 : 3, kDim == 64 ? 2 : 1, 16, true>;
template <int kDim>
using Pieces32 = AttentionTile<kDim, 1, 128, kDim == 64 ? 6 : 3, kDim == 64 ? 2 : 1, 32, true>;

const AttentionSm90<Pieces16> kPieces16{"attention_merged_sm90/p16", 0.45};
const AttentionSm90<Pieces32> kPieces32{"attention_merged_sm90/p32", 0.47};
const Registration kRegisterPieces16{kPieces16}, kRegisterPieces32{kPieces32};

}  // namespace
}  // namespace sparse_autotune
