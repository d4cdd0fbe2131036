// The kernels of small_n_sm80 that multiply by A^T, apart so that no file compiles for long.
#include "kernels/cuda/product/few_columns/small_n_launch.cuh"

namespace sparse_autotune {

template <typename Tile, bool kOverlaps>
SmallNCodes transposed_small_n_codes() {
  return small_n_codes<Tile, true, kOverlaps>();
}

template SmallNCodes transposed_small_n_codes<SmallN16x8K4, false>();
template SmallNCodes transposed_small_n_codes<SmallN16x8K8, false>();
template SmallNCodes transposed_small_n_codes<SmallN16x8K16, false>();
template SmallNCodes transposed_small_n_codes<SmallN32x8K4, false>();
template SmallNCodes transposed_small_n_codes<SmallN16x16K4, false>();
template SmallNCodes transposed_small_n_codes<SmallN16x16K8, false>();
template SmallNCodes transposed_small_n_codes<SmallN32x16K8, false>();
template SmallNCodes transposed_small_n_codes<SmallN16x32K8, false>();
template SmallNCodes transposed_small_n_codes<SmallN32x32K8, false>();
template SmallNCodes transposed_small_n_codes<SmallN32x64K4, false>();

}  // namespace sparse_autotune
