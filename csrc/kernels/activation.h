// The activation functions of a product's epilogue, on host and device alike.
#pragma once

#include <cmath>

#include "host_device.h"
#include "operators/product/product.h"

namespace sparse_autotune {

// T is float or double: the accumulator's type, before rounding to the result's.
// gelu and its tanh form as PyTorch defines them (torch.nn.functional.gelu).
template <typename T>
SPARSE_AUTOTUNE_HOST_DEVICE inline T activate(T x, Activation activation) {
  switch (activation) {
    case Activation::kNone:
      return x;
    case Activation::kRelu:
      return x < T(0) ? T(0) : x;  // a NaN stays a NaN
    case Activation::kGelu:
      return x * T(0.5) * (T(1) + erf(x * T(0.70710678118654752440)));
    case Activation::kGeluTanh:
      return x * T(0.5) * (T(1) + tanh(T(0.79788456080286535588) * (x + T(0.044715) * x * x * x)));
    case Activation::kSilu:
      return x / (T(1) + exp(-x));
  }
  return x;
}

}  // namespace sparse_autotune
