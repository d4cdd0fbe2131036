// From a DType to its type on the GPU. Host code.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "with_type.h"

namespace sparse_autotune {

template <typename F>
auto with_type(DType dtype, F&& f) {
  return with_type_of<__half, __nv_bfloat16>(dtype, f);
}

}  // namespace sparse_autotune
