// Elements and indices of any type, one at a time: for kernels that explain rather than hurry.
#pragma once

#include "half.h"
#include "variant.h"

namespace sparse_autotune {

inline double load(const void* data, int64_t i, DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
      return to_float(static_cast<const Half*>(data)[i]);
    case DType::kBFloat16:
      return to_float(static_cast<const BFloat16*>(data)[i]);
    case DType::kFloat32:
      return static_cast<const float*>(data)[i];
    case DType::kFloat64:
      return static_cast<const double*>(data)[i];
  }
  return 0;
}

inline void store(void* data, int64_t i, DType dtype, double x) {
  switch (dtype) {
    case DType::kFloat16:
      static_cast<Half*>(data)[i] = to_half(static_cast<float>(x));
      break;
    case DType::kBFloat16:
      static_cast<BFloat16*>(data)[i] = to_bfloat16(static_cast<float>(x));
      break;
    case DType::kFloat32:
      static_cast<float*>(data)[i] = static_cast<float>(x);
      break;
    case DType::kFloat64:
      static_cast<double*>(data)[i] = x;
      break;
  }
}

inline int64_t load_index(const void* data, int64_t i, IndexType type) {
  return type == IndexType::kInt64 ? static_cast<const int64_t*>(data)[i]
                                   : static_cast<const int32_t*>(data)[i];
}

}  // namespace sparse_autotune
