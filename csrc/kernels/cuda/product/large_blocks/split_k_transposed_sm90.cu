// The kernels of split_k_sm90 that multiply by A^T, apart so that no file compiles for long.
#include "kernels/cuda/product/large_blocks/wgmma_launch.cuh"

namespace sparse_autotune {

template <typename Tile, bool kSplits>
WgmmaCodes transposed_wgmma_codes() {
  return wgmma_codes<Tile, true, kSplits>();
}

template WgmmaCodes transposed_wgmma_codes<M128N256, true>();
template WgmmaCodes transposed_wgmma_codes<M128N128, true>();
template WgmmaCodes transposed_wgmma_codes<M128N64, true>();
template WgmmaCodes transposed_wgmma_codes<M64N512, true>();
template WgmmaCodes transposed_wgmma_codes<M64N256, true>();
template WgmmaCodes transposed_wgmma_codes<M64N128, true>();

}  // namespace sparse_autotune
