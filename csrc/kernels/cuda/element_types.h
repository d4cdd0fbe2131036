// From a DType to its type on the GPU. Host code.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "variant.h"

namespace sparse_autotune {

// Calls f with a null pointer to the type: [&]<typename T>(T*) { ... }.
template <typename F>
auto with_type(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kFloat16:
      return f(static_cast<__half*>(nullptr));
    case DType::kBFloat16:
      return f(static_cast<__nv_bfloat16*>(nullptr));
    case DType::kFloat32:
      return f(static_cast<float*>(nullptr));
    case DType::kFloat64:
      break;
  }
  return f(static_cast<double*>(nullptr));
}

}  // namespace sparse_autotune
