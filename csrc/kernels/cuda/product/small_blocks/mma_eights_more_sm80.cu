// More kernels of mma_eights_sm80, apart so that no file compiles for long.
#include "kernels/cuda/product/small_blocks/mma_eights_launch.cuh"

namespace sparse_autotune {

// Two stages of 512 rows in 193 KiB of shared memory (compute capability 9.0 and 10.0): what a
// stage costs, whatever it holds, comes half as often. Wins where blocks are few.
constinit const EightsShape kEightsDeep = eights_shape<512, 2>();

// Two stages of 128 rows in 97 KiB, for devices with no more than 99 KiB (compute capability 8.6,
// 8.9 and 12.0); an H200 needs 1.5 to 1.8 times as long.
constinit const EightsShape kEightsSmall = eights_shape<128, 2>();

}  // namespace sparse_autotune
