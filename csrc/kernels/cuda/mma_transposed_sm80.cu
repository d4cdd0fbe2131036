// The kernels of mma_sm80 that multiply by A^T, apart so that no file compiles for long.
#include "kernels/cuda/mma_launch.cuh"

namespace sparse_autotune {

template <typename Tile>
MmaCodes transposed_mma_codes() {
  return mma_codes<Tile, true>();
}

template MmaCodes transposed_mma_codes<MmaM128N128>();
template MmaCodes transposed_mma_codes<MmaM64N256>();
template MmaCodes transposed_mma_codes<MmaM64N128>();
template MmaCodes transposed_mma_codes<MmaM32N256>();
template MmaCodes transposed_mma_codes<MmaM16N128>();

}  // namespace sparse_autotune
