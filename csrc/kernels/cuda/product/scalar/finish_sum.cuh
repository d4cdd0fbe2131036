// One element of C, from its sum.
#pragma once

#include "kernels/activation.h"
#include "operators/product/product.h"

namespace sparse_autotune {

// Of the row `row` of C.
template <typename T, typename Acc>
__device__ __forceinline__ T finish_sum(Acc sum, const void* bias, int row, Activation activation) {
  if (bias != nullptr) sum += static_cast<Acc>(static_cast<const T*>(bias)[row]);
  return static_cast<T>(activate(sum, activation));
}

}  // namespace sparse_autotune
