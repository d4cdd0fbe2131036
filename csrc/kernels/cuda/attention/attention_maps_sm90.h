// What launches of attention_sm90 and attention_backward_sm90 share.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/attention_arguments.h"
#include "kernels/cuda/attention/online_softmax.cuh"
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

// What forward kernels are told of the work, but maps, lists and q.
template <typename Arguments>
void describe_work(const AttentionForward& a, int tile_rows, const Device& device,
                   unsigned* counter, Arguments* args) {
  const AttentionShape& s = a.shape;
  args->out = a.out;
  args->lse = a.lse;
  args->mask = a.mask;
  args->counter = counter;
  args->rows = static_cast<int>(s.rows);
  args->columns = static_cast<int>(s.columns);
  args->heads = static_cast<int>(s.heads);
  args->group = static_cast<int>(s.heads / s.kv_heads);
  args->batch_heads = static_cast<int>(s.batch * s.heads);
  args->row_tiles = static_cast<int>(ceil_div(s.rows, tile_rows));
  args->items = args->row_tiles * args->batch_heads;
  const double kv_bytes = 4.0 * s.columns * s.dim / args->group;  // in halves, of a query head
  args->heads_at_once =
      static_cast<int>(heads_that_fit(kv_bytes, args->batch_heads, device.l2_bytes));
  args->scale_log2 = positive_scale(a.scale);
  args->is_negative = a.scale < 0;
  args->is_causal = a.is_causal;
}

}  // namespace sparse_autotune
