// What TMA asks of a sampled product's operands, whatever multiplies them, and how it sees them.
// Host code.
#pragma once

#include <algorithm>
#include <string>

#include "kernels/cuda/alignment.h"
#include "kernels/cuda/tensor_map.h"
#include "variant.h"

namespace sparse_autotune {

// `most`: the largest number that the kernel counts to.
inline Support sampled_by_tma(const Problem& p, int64_t most) {
  if (p.nnzb == 0 || p.n == 0) return Support::no("there is nothing to sum up");
  const Support aligned = aligned_to_16(
      "values, B and C", std::min({p.values_alignment, p.b_alignment, p.c_alignment}));
  if (!aligned) return aligned;
  const int64_t longest =
      std::max({p.ldb, p.ldc, p.b_batch_stride, p.c_batch_stride}) * size_of(p.dtype);
  if (std::max({p.m, p.n, p.k, p.batch, most}) > INT32_MAX || longest >= int64_t{1} << 40) {
    return Support::no("a size is beyond TMA's 32-bit coordinates or 40-bit strides");
  }
  return Support::yes();
}

// C's rows or B's columns, `lines` of p.n terms in each matrix of a batch that are `stride` apart
// (0: one matrix for all), as boxes of `box` lines, a multiple of 64, by 64 terms.
inline Status sampled_tensor_map(const Problem& p, const void* data, Layout layout, int64_t lines,
                                 int64_t ld, int64_t stride, uint32_t box, CUtensorMap* to) {
  const int64_t matrices = stride != 0 ? p.batch : 1;
  // The stride of a dimension of one element is never used, but must be one that TMA takes.
  const int64_t apart = stride != 0 ? stride : ld;
  if (layout == Layout::kRowMajor) {  // terms are contiguous
    return make_tensor_map({data, p.dtype, 3, {p.n, lines, matrices}, {ld, apart}, {64, box, 1}},
                           to);
  }
  return make_tensor_map(
      {data, p.dtype, 4, {64, p.n, lines / 64, matrices}, {ld, 64, apart}, {64, 64, box / 64, 1}},
      to);
}

}  // namespace sparse_autotune
