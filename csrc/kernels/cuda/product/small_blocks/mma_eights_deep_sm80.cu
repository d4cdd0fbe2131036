// mma_eights_sm80 with two stages of 512 rows, apart so that no file compiles for long. Needs 193
// KiB of shared memory (compute capability 9.0 and 10.0). Wins up to some 2%: what a stage costs,
// whatever it holds, comes half as often, but fewer pieces are under way.
#include "kernels/cuda/product/small_blocks/mma_eights_launch.cuh"

namespace sparse_autotune {

constinit const EightsShape kEightsDeep = eights_shape<16, 512, 2, 1, 1>();

}  // namespace sparse_autotune
