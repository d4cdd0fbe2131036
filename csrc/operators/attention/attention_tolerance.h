// How far an element of a right attention may be from its fp64 reference.
//
// Four errors are told apart. (1) A score is a sum of `dim` products in the accumulator's
// precision, and a few operations on it more; its absolute error is the relative one of its
// probability. (2) Probabilities, and gradients of scores, may be rounded to the operands' dtype
// before they are multiplied: errors of random sign, whose sum grows as the root of the sum of
// squares. Four times unit roundoff is seven of their standard deviations. Those below the dtype's
// smallest normal number, as many of fp16 are in long rows, are off by half its smallest number.
// (3) Exponentials of half types need not be better than that rounding: they may be off by a
// quarter of it, which shows in lse. (4) Sums over columns or rows, as of any product.
#pragma once

#include <cmath>
#include <cstdint>

#include "host_device.h"
#include "operator.h"
#include "operators/attention/attention.h"

namespace sparse_autotune::attention {

struct Precision {
  double unit;         // of what is stored
  double accumulator;  // of sums
  double probability;  // of probabilities before they are multiplied
  double exponential;  // of exponentials, whose sum is in lse
  double input;        // what inputs may be rounded to; 0: they are not
  double smallest;     // outputs below the smallest normal number

  SPARSE_AUTOTUNE_HOST_DEVICE explicit Precision(const Problem& p)
      : unit(unit_roundoff(p.dtype)),
        accumulator(p.dtype == DType::kFloat64 ? 0x1p-53 : 0x1p-24),
        probability(is_half(p.dtype) ? unit : accumulator),
        exponential(is_half(p.dtype) ? unit / 4 : 0),
        input(p.dtype == DType::kFloat32 && p.allow_tf32 ? 0x1p-9 : 0),
        smallest(p.dtype == DType::kFloat16   ? 0x1p-24
                 : p.dtype == DType::kFloat64 ? 0x1p-1022
                                              : 0x1p-126) {
    if (input > 0) probability = input;
  }

  // Relative to the sum of absolute values of so many terms (Higham, Accuracy and Stability of
  // Numerical Algorithms, chapter 4; room for biased rounding, as tensor cores do it).
  SPARSE_AUTOTUNE_HOST_DEVICE double sum(int64_t length) const {
    return accumulator * (8 + 4 * sqrt(static_cast<double>(length))) + input;
  }

  // Of the rounding of a weight, a probability times `factor`, which may be rounded before and
  // after.
  SPARSE_AUTOTUNE_HOST_DEVICE double of_weight(double weight, double factor) const {
    return probability * fabs(weight) + smallest / 2 * (1 + fabs(factor));
  }
};

}  // namespace sparse_autotune::attention
