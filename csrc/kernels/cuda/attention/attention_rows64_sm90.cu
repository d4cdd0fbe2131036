// attention_rows64_sm90: Hopper's attention where block rows have 64 rows or a multiple.
//
// Each consumer of a thread block has a producer, a ring and items of its own, as two block rows
// have different columns. Data path: as attention_sm90. Wins: masks whose blocks have 64 rows; it
// is bound by what L2 can hand to shared memory.
#include "kernels/cuda/attention/attention_variant_sm90.cuh"

namespace sparse_autotune {
namespace {

template <int kDim>
using Rows64 =
    AttentionTile<kDim, 1, kDim == 64 ? 128 : 64, kDim == 64 ? 6 : 5, 2, 64, false, true>;

const AttentionSm90<Rows64> kRows64{"attention_rows64_sm90/p64", 0.52};
const Registration kRegisterRows64{kRows64};

}  // namespace
}  // namespace sparse_autotune
