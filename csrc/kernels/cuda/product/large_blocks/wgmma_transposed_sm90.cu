// The kernels of wgmma_sm90 that multiply by A^T, apart so that no file compiles for long.
#include "kernels/cuda/product/large_blocks/wgmma_launch.cuh"

namespace sparse_autotune {

template <typename Tile, bool kSplits>
WgmmaCodes transposed_wgmma_codes() {
  return wgmma_codes<Tile, true, kSplits>();
}

template WgmmaCodes transposed_wgmma_codes<M128N256, false>();
template WgmmaCodes transposed_wgmma_codes<M128N128, false>();
template WgmmaCodes transposed_wgmma_codes<M128N64, false>();
template WgmmaCodes transposed_wgmma_codes<M64N512, false>();
template WgmmaCodes transposed_wgmma_codes<M64N256, false>();
template WgmmaCodes transposed_wgmma_codes<M64N128, false>();

}  // namespace sparse_autotune
