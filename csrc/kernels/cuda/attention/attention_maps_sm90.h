// What launches of attention_sm90 and attention_backward_sm90 share.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/attention/warp_softmax.cuh"
#include "kernels/cuda/attention/work_items.cuh"
#include "kernels/cuda/host/tensor_map.h"

namespace sparse_autotune {

// The map of a tensor as boxes of `box` rows by 64 of the head dimension.
inline Status map_boxes(const AttentionTensor& t, DType dtype, int64_t rows, int64_t heads,
                        const AttentionShape& shape, uint32_t box, CUtensorMap* map) {
  return make_tensor_map({t.data,
                          dtype,
                          4,
                          {shape.dim, rows, heads, shape.batch},
                          {t.row_stride, t.head_stride, t.batch_stride},
                          {64, box, 1, 1}},
                         map);
}

// Of how many of `heads` the tiles take turns: those whose operands fill a part of L2 that leaves
// room for what streams by.
inline int64_t heads_that_fit(double bytes_each, int64_t heads, int64_t l2_bytes) {
  const double fit = 0.4 * static_cast<double>(l2_bytes) / bytes_each;
  return static_cast<int64_t>(std::clamp(fit, 1.0, static_cast<double>(heads)));
}

// The counts of work whose rows are those of `heads` heads, its columns those of `column_heads`:
// two tensors of halves.
inline void count_work(const AttentionShape& s, int64_t heads, int64_t column_heads, int tile_rows,
                       const Device& device, AttentionWork* work) {
  work->rows = static_cast<int>(s.rows);
  work->columns = static_cast<int>(s.columns);
  work->heads = static_cast<int>(heads);
  work->group = static_cast<int>(s.heads / s.kv_heads);
  work->batch_heads = static_cast<int>(s.batch * heads);
  work->row_tiles = static_cast<int>(ceil_div(s.rows, tile_rows));
  work->items = work->row_tiles * work->batch_heads;
  const double bytes = 4.0 * s.columns * s.dim * column_heads / heads;  // that a head's rows read
  work->heads_at_end = static_cast<int>(heads_that_fit(bytes, work->batch_heads, device.l2_bytes));
}

// What forward kernels are told of the work, but the lists.
inline void describe_work(const AttentionForward& a, int tile_rows, const Device& device,
                          unsigned* counter, ForwardWork* work) {
  count_work(a.shape, a.shape.heads, a.shape.kv_heads, tile_rows, device, work);
  work->out = a.out;
  work->lse = a.lse;
  work->mask = a.mask;
  work->counter = counter;
  work->scale_log2 = positive_scale(a.scale);
  work->is_negative = a.scale < 0;
  work->is_causal = a.is_causal;
}

}  // namespace sparse_autotune
