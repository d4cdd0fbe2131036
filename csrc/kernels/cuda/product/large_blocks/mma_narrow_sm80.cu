// The kernels of mma_sm80 for smaller tiles, apart so that no file compiles for long.
#include "kernels/cuda/product/large_blocks/mma_launch.cuh"

namespace sparse_autotune {

template <typename Tile, bool kTransposedA>
MmaCodes mma_codes_apart() {
  return mma_codes<Tile, kTransposedA>();
}

template MmaCodes mma_codes_apart<MmaM64N128, false>();
template MmaCodes mma_codes_apart<MmaM64N128, true>();
template MmaCodes mma_codes_apart<MmaM32N256, false>();
template MmaCodes mma_codes_apart<MmaM32N256, true>();
template MmaCodes mma_codes_apart<MmaM32N128, false>();
template MmaCodes mma_codes_apart<MmaM32N128, true>();
template MmaCodes mma_codes_apart<MmaM16N128, false>();
template MmaCodes mma_codes_apart<MmaM16N128, true>();

}  // namespace sparse_autotune
