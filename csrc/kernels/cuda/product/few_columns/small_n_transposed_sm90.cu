// The kernels of small_n_sm90 that multiply by A^T, apart so that no file compiles for long.
#include "kernels/cuda/product/few_columns/small_n_launch.cuh"

namespace sparse_autotune {

template <typename Tile, bool kOverlaps>
SmallNCodes transposed_small_n_codes() {
  return small_n_codes<Tile, true, kOverlaps>();
}

template SmallNCodes transposed_small_n_codes<SmallN16x8K4, true>();
template SmallNCodes transposed_small_n_codes<SmallN16x8K8, true>();
template SmallNCodes transposed_small_n_codes<SmallN16x8K16, true>();
template SmallNCodes transposed_small_n_codes<SmallN32x8K4, true>();
template SmallNCodes transposed_small_n_codes<SmallN32x8K8, true>();
template SmallNCodes transposed_small_n_codes<SmallN16x16K4, true>();
template SmallNCodes transposed_small_n_codes<SmallN16x16K8, true>();
template SmallNCodes transposed_small_n_codes<SmallN16x16K16, true>();
template SmallNCodes transposed_small_n_codes<SmallN32x16K4, true>();
template SmallNCodes transposed_small_n_codes<SmallN32x16K8, true>();
template SmallNCodes transposed_small_n_codes<SmallN16x32K8, true>();
template SmallNCodes transposed_small_n_codes<SmallN32x32K8, true>();
template SmallNCodes transposed_small_n_codes<SmallN16x64K4, true>();
template SmallNCodes transposed_small_n_codes<SmallN32x64K4, true>();

}  // namespace sparse_autotune
