// The kernels of mma_sm80 that multiply by A^T, apart so that no file compiles for long.
#include "kernels/cuda/product/large_blocks/mma_launch.cuh"

namespace sparse_autotune {

template <typename Tile, bool kTransposedA>
MmaCodes mma_codes_apart() {
  return mma_codes<Tile, kTransposedA>();
}

template MmaCodes mma_codes_apart<MmaM128N128, true>();
template MmaCodes mma_codes_apart<MmaM64N256, true>();

}  // namespace sparse_autotune
