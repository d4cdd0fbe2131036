// What launches of attention_sm90 and attention_backward_sm90 share.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/attention_arguments.h"
#include "kernels/cuda/host/tensor_map.h"

namespace sparse_autotune {

// A tensor as boxes of `box` rows by 64 of the head dimension.
inline BoxedTensor boxes_of(const AttentionTensor& t, DType dtype, int64_t rows, int64_t heads,
                            const AttentionShape& shape, uint32_t box) {
  return {t.data,
          dtype,
          4,
          {shape.dim, rows, heads, shape.batch},
          {t.row_stride, t.head_stride, t.batch_stride},
          {64, box, 1, 1}};
}

// How many of `heads` are worked on together: those whose operands fill a part of L2 that leaves
// room for what streams by.
inline int64_t heads_that_fit(double bytes_each, int64_t heads, int64_t l2_bytes) {
  const double fit = 0.4 * static_cast<double>(l2_bytes) / bytes_each;
  return static_cast<int64_t>(std::clamp(fit, 1.0, static_cast<double>(heads)));
}

}  // namespace sparse_autotune
