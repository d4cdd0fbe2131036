// From a DType to its type.
#pragma once

#include "variant.h"

namespace sparse_autotune {

// Calls f with a null pointer to the type: [&]<typename T>(T*) { ... }. The host and the GPU have
// half types of their own.
template <typename Float16, typename BrainFloat16, typename F>
auto with_type_of(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kFloat16:
      return f(static_cast<Float16*>(nullptr));
    case DType::kBFloat16:
      return f(static_cast<BrainFloat16*>(nullptr));
    case DType::kFloat32:
      return f(static_cast<float*>(nullptr));
    case DType::kFloat64:
      break;
  }
  return f(static_cast<double*>(nullptr));
}

}  // namespace sparse_autotune
