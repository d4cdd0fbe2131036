// mma_fours_sm80 in 97 KiB of shared memory, apart so that no file compiles for long: two stages.
// For devices with no more than 99 KiB (compute capability 8.6, 8.9 and 12.0).
#include "kernels/cuda/mma_eights_launch.cuh"

namespace sparse_autotune {
namespace {

const MmaFours kM512X2{
    "mma_fours_sm80/m512_x2", eights_shape<FoursBlocks, 16, 256, 2, 1, 1>(), {1.5, 0.0062, 0.06}};

}  // namespace
}  // namespace sparse_autotune
