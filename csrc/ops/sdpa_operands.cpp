#include "ops/sdpa_operands.h"

#include <algorithm>
#include <limits>

#include "half.h"

namespace sparse_autotune {
namespace {

Tensor strided(const void* data, const attention::TensorStrides& s, int64_t heads, int64_t rows,
               const attention::Problem& p, const attention::Launch& l) {
  return tensor_over(data, {p.batch, heads, rows, p.dim}, {s.batch, s.head, s.row, 1},
                     element_type(p.dtype), *l.device);
}

// An operand. Along a dimension of one nobody walks, but torch's kernels want its stride aligned.
Tensor given(const void* data, const attention::TensorStrides& s, int64_t heads, int64_t rows,
             const attention::Problem& p, const attention::Launch& l) {
  const attention::TensorStrides dense = attention::dense_like(s, heads, rows, p.dim);
  return strided(data,
                 {p.batch > 1 ? s.batch : dense.batch, heads > 1 ? s.head : dense.head,
                  rows > 1 ? s.row : dense.row},
                 heads, rows, p, l);
}

// The mask as a number for each pair: its bytes, and the call that writes it where `prepared` is.
int64_t dense_mask_bytes(const attention::Problem& p) {
  return attention::has_mask(p) ? p.patterns * p.rows * p.columns * size_of(p.dtype) : 0;
}

void write_dense_mask(const attention::Problem& p, const attention::Launch& l) {
  const int64_t lines = attention::block_rows(p);
  with_type(p.dtype, [&]<typename T>(T*) {
    const T hidden = narrowed<T>(-std::numeric_limits<double>::infinity()), seen = narrowed<T>(0);
    parallel_for(l.parallel, 0, p.patterns * p.rows, 16, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = i % p.rows;
        const int32_t* const crow = l.crow_indices + i / p.rows * (lines + 1) + row / p.block_m;
        T* const to = static_cast<T*>(l.prepared) + i * p.columns;
        std::fill(to, to + p.columns, hidden);
        const int64_t limit = p.is_causal ? std::min(row + 1, p.columns) : p.columns;
        for (int64_t block = crow[0]; block < crow[1]; ++block) {
          const int64_t first = l.col_indices[block] * p.block_n;
          if (first < limit) std::fill(to + first, to + std::min(first + p.block_n, limit), seen);
        }
      }
    });
  });
}

}  // namespace

AttentionViews::AttentionViews(const attention::Problem& p, const attention::Launch& l)
    : q(given(l.q, p.q, p.heads, p.rows, p, l)),
      k(given(l.k, p.k, p.kv_heads, p.columns, p, l)),
      v(given(l.v, p.v, p.kv_heads, p.columns, p, l)),
      out(strided(l.out, attention::strides_of_out(p), p.heads, p.rows, p, l)),
      lse(row_values(p, l, l.lse)) {}

SdpaOperands::SdpaOperands(const attention::Problem& p, const attention::Launch& l)
    : AttentionViews(p, l) {
  if (!attention::has_mask(p)) return;
  const int64_t one = p.rows * p.columns;
  mask = tensor_over(l.prepared, {p.batch, p.heads, p.rows, p.columns},
                     {p.mask_batch_stride * one, p.mask_head_stride * one, p.columns, 1},
                     element_type(p.dtype), *l.device);
}

std::array<Tensor, 3> gradients_of(const attention::Problem& p, const attention::Launch& l) {
  return {strided(l.dq, attention::strides_of_out(p), p.heads, p.rows, p, l),
          strided(l.dk, attention::strides_of_dk(p), p.kv_heads, p.columns, p, l),
          strided(l.dv, attention::strides_of_dv(p), p.kv_heads, p.columns, p, l)};
}
Tensor gradient_of_out(const attention::Problem& p, const attention::Launch& l) {
  return given(l.dout, p.dout, p.heads, p.rows, p, l);
}

Tensor row_values(const attention::Problem& p, const attention::Launch& l, const void* data) {
  return tensor_over(data, {p.batch, p.heads, p.rows}, {p.heads * p.rows, p.rows, 1},
                     element_type(attention::row_dtype(p)), *l.device);
}

double DenseMaskSdpa::estimate_us(const attention::Problem& p, const Device& d) const {
  const double bytes =
      attention::compulsory_bytes(p) + 2.0 * static_cast<double>(dense_mask_bytes(p));
  return roofline_us(attention::dense_flops(p), 0.3 * attention::fma_tflops(p, d), bytes,
                     d.memory_gbps, 20.0);
}

int64_t DenseMaskSdpa::prepared_bytes(const attention::Problem& p, const Device&) const {
  return dense_mask_bytes(p);
}

Status DenseMaskSdpa::prepare(const attention::Problem& p, const attention::Launch& l) const {
  write_dense_mask(p, l);
  return Status::ok();
}

}  // namespace sparse_autotune
