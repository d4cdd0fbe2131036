// How far an element of a right product may be from its fp64 reference.
#pragma once

#include <cmath>
#include <cstdint>

#include "host_device.h"
#include "kernels/activation.h"
#include "operator.h"
#include "operators/product/product.h"

namespace sparse_autotune {

// `product` is the sum of products in fp64, `magnitude` the same of absolute values (with the
// bias's), `length` the number of terms. The error of a sum of `length` rounded terms grows with
// sqrt(length) for errors of random sign (Higham, Accuracy and Stability of Numerical Algorithms,
// chapter 4) and never exceeds length * unit * magnitude; 4 sqrt(length) + 8 leaves room for biased
// rounding, as tensor cores do it. Half types accumulate in fp32.
SPARSE_AUTOTUNE_HOST_DEVICE inline Expected expected_element(double product, double bias,
                                                             double magnitude, int64_t length,
                                                             const Problem& p) {
  const double unit = unit_roundoff(p.dtype);
  const double accumulator = p.dtype == DType::kFloat64 ? 0x1p-53 : 0x1p-24;
  const double sum = product + bias;
  double inner = magnitude * accumulator * (8 + 4 * sqrt(static_cast<double>(length)));
  // TF32 keeps 11 bits of each input, cut rather than rounded by some.
  if (p.dtype == DType::kFloat32 && p.allow_tf32) inner += magnitude * 0x1p-9;
  // Library variants round the product before the bias, and the sum before the activation.
  if (p.has_bias || p.activation != Activation::kNone) {
    inner += (fabs(product) + fabs(sum)) * (unit + 16 * accumulator);
  }
  const double value = activate(sum, p.activation);
  // No activation is steeper than 1.13. The last term: outputs below the smallest normal number.
  const double smallest = p.dtype == DType::kFloat16   ? 0x1p-24
                          : p.dtype == DType::kFloat64 ? 0x1p-1022
                                                       : 0x1p-126;
  return {value, 1.13 * inner + fabs(value) * unit + smallest};
}

}  // namespace sparse_autotune
