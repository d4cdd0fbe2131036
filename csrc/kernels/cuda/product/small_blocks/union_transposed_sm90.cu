// The kernels of union_sm90 that multiply by A^T, apart so that no file compiles for long.
#include "kernels/cuda/product/small_blocks/union_launch.cuh"

namespace sparse_autotune {

template <typename Config>
UnionCodes transposed_union_codes() {
  return union_codes<Config, true>();
}

template UnionCodes transposed_union_codes<B16R16>();
template UnionCodes transposed_union_codes<B16R32>();
template UnionCodes transposed_union_codes<B16R8>();
template UnionCodes transposed_union_codes<B16R8N64>();
template UnionCodes transposed_union_codes<B16x32R16>();
template UnionCodes transposed_union_codes<B32x16R8>();
template UnionCodes transposed_union_codes<B32R8>();
template UnionCodes transposed_union_codes<B32R8Lines>();
template UnionCodes transposed_union_codes<B32x16R8Spans>();
template UnionCodes transposed_union_codes<B32R4>();
template UnionCodes transposed_union_codes<B32R8N64>();

}  // namespace sparse_autotune
