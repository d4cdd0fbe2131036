// mma_fours_sm80 in 97 KiB of shared memory, apart so that no file compiles for long: two stages.
// For devices with no more than 99 KiB (compute capability 8.6, 8.9 and 12.0).
#include "kernels/cuda/product/small_blocks/mma_eights_launch.cuh"

namespace sparse_autotune {

constinit const EightsShape kFoursSmall = eights_shape<FoursBlocks, 16, 256, 2, 1, 1>();

}  // namespace sparse_autotune
