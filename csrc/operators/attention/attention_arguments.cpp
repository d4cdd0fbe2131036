#include "operators/attention/attention.h"

namespace sparse_autotune::attention {
namespace {

AttentionTensor strided(const void* data, const TensorStrides& s) {
  return {const_cast<void*>(data), s.batch, s.head, s.row};
}

AttentionRowValues values(const void* data, const Problem& p) {
  return {static_cast<float*>(const_cast<void*>(data)), p.heads * p.rows, p.rows, 1};
}

AttentionShape shape_of(const Problem& p) {
  return {p.batch, p.heads, p.kv_heads, p.rows, p.columns, p.dim};
}

AttentionMask mask_of(const Problem& p, const Launch& l) {
  if (!has_mask(p)) return {};
  return {l.crow_indices,
          l.col_indices,
          p.mask_batch_stride,
          p.mask_head_stride,
          static_cast<int32_t>(p.block_m),
          static_cast<int32_t>(p.block_n),
          static_cast<int32_t>(p.patterns)};
}

}  // namespace

AttentionForward forward_arguments(const Problem& p, const Launch& l) {
  AttentionForward a;
  a.shape = shape_of(p);
  a.q = strided(l.q, p.q);
  a.k = strided(l.k, p.k);
  a.v = strided(l.v, p.v);
  a.out = strided(l.out, strides_of_out(p));
  a.lse = values(l.lse, p);
  a.mask = mask_of(p, l);
  a.scale = l.scale;
  a.is_causal = p.is_causal;
  a.workspace = l.workspace;
  a.stream = l.stream;
  return a;
}

AttentionBackward backward_arguments(const Problem& p, const Launch& l) {
  AttentionBackward a;
  a.shape = shape_of(p);
  a.q = strided(l.q, p.q);
  a.k = strided(l.k, p.k);
  a.v = strided(l.v, p.v);
  a.out = strided(l.out, strides_of_out(p));
  a.dout = strided(l.dout, p.dout);
  a.lse = values(l.lse, p);
  a.dlse = values(l.dlse, p);
  a.dq = strided(l.dq, strides_of_out(p));
  a.dk = strided(l.dk, strides_of_dk(p));
  a.dv = strided(l.dv, strides_of_dv(p));
  a.mask = mask_of(p, l);
  if (has_mask(p)) a.by_column = {l.ccol_indices, l.row_indices};
  a.scale = l.scale;
  a.is_causal = p.is_causal;
  a.workspace = l.workspace;
  a.stream = l.stream;
  return a;
}

}  // namespace sparse_autotune::attention
