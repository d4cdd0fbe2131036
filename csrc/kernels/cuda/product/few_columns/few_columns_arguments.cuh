// What the kernels of few columns are told besides: how C lies.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/product_arguments.cuh"

namespace sparse_autotune {

struct FewColumnsArguments : ProductArguments {
  int64_t c_row, c_column, c_batch_stride;  // elements from one to the next
  int n, block_m, block_k;
  bool stores_quads;  // 8 bytes of a column of C at a time
};

}  // namespace sparse_autotune
