// What TMA asks of a sampled product's operands, whatever multiplies them. Host code.
#pragma once

#include <algorithm>
#include <string>

#include "variant.h"

namespace sparse_autotune {

// `most`: the largest number that the kernel counts to.
inline Support sampled_by_tma(const Problem& p, int64_t most) {
  if (p.nnzb == 0 || p.n == 0) return Support::no("there is nothing to sum up");
  const int alignment = std::min({p.values_alignment, p.b_alignment, p.c_alignment});
  if (alignment < 16) {
    return Support::no(
        "needs addresses, leading dimensions and batch strides of values, B and C that are "
        "multiples of 16 bytes, one is a multiple of " +
        std::to_string(alignment));
  }
  const int64_t longest =
      std::max({p.ldb, p.ldc, p.b_batch_stride, p.c_batch_stride}) * size_of(p.dtype);
  if (std::max({p.m, p.n, p.k, p.batch, most}) > INT32_MAX || longest >= int64_t{1} << 40) {
    return Support::no("a size is beyond TMA's 32-bit coordinates or 40-bit strides");
  }
  return Support::yes();
}

}  // namespace sparse_autotune
