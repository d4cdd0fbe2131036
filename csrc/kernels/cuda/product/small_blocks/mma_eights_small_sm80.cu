// mma_eights_sm80 in 97 KiB of shared memory, apart so that no file compiles for long: two stages
// of 128 rows. For devices with no more than 99 KiB (compute capability 8.6, 8.9 and 12.0), where
// it wins as mma_eights_sm80 does elsewhere; an H200 needs 1.5 to 1.8 times as long.
#include "kernels/cuda/product/small_blocks/mma_eights_launch.cuh"

namespace sparse_autotune {

constinit const EightsShape kEightsSmall = eights_shape<16, 128, 2, 1, 1>();

}  // namespace sparse_autotune
