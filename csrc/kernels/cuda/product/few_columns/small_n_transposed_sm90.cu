// The kernels of small_n_sm90 that multiply by A^T, apart so that no file compiles for long.
#include "kernels/cuda/product/few_columns/small_n_launch.cuh"

namespace sparse_autotune {

template <typename Tile>
SmallNCodes transposed_small_n_sm90_codes() {
  return small_n_codes<Tile, true, true>();
}

template SmallNCodes transposed_small_n_sm90_codes<SmallN16x8K4>();
template SmallNCodes transposed_small_n_sm90_codes<SmallN16x8K8>();
template SmallNCodes transposed_small_n_sm90_codes<SmallN16x8K16>();
template SmallNCodes transposed_small_n_sm90_codes<SmallN32x8K4>();
template SmallNCodes transposed_small_n_sm90_codes<SmallN32x8K8>();
template SmallNCodes transposed_small_n_sm90_codes<SmallN16x16K4>();
template SmallNCodes transposed_small_n_sm90_codes<SmallN16x16K8>();
template SmallNCodes transposed_small_n_sm90_codes<SmallN16x16K16>();
template SmallNCodes transposed_small_n_sm90_codes<SmallN32x16K8>();
template SmallNCodes transposed_small_n_sm90_codes<SmallN16x32K8>();
template SmallNCodes transposed_small_n_sm90_codes<SmallN32x32K8>();
template SmallNCodes transposed_small_n_sm90_codes<SmallN16x64K4>();
template SmallNCodes transposed_small_n_sm90_codes<SmallN32x64K4>();

}  // namespace sparse_autotune
