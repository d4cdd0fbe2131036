// Elements and indices of any type, one at a time: for kernels that explain rather than hurry.
#pragma once

#include "half.h"
#include "variant.h"

namespace sparse_autotune {

inline double load(const void* data, int64_t i, DType dtype) {
  return with_type(dtype,
                   [&]<typename T>(T*) { return double{widened(static_cast<const T*>(data)[i])}; });
}

inline void store(void* data, int64_t i, DType dtype, double x) {
  with_type(dtype, [&]<typename T>(T*) { static_cast<T*>(data)[i] = narrowed<T>(x); });
}

inline int64_t load_index(const void* data, int64_t i, IndexType type) {
  return type == IndexType::kInt64 ? static_cast<const int64_t*>(data)[i]
                                   : static_cast<const int32_t*>(data)[i];
}

}  // namespace sparse_autotune
