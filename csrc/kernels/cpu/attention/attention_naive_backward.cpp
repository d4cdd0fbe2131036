// The simplest correct gradients of attention on a CPU, computed in fp64. Each probability is made
// again from its score and lse:
//   p[i, j]  = exp(scale * q[i] . k[j] - lse[i])
//   ds[i, j] = p[i, j] * (dout[i] . v[j] - delta[i]),  delta[i] = dout[i] . out[i] - dlse[i]
//   dq[i] = scale * sum over j of ds[i, j] * k[j]
//   dk[j] = scale * sum over i of ds[i, j] * q[i],  dv[j] = sum over i of p[i, j] * dout[i]
#include <cmath>
#include <limits>

#include "kernels/cpu/attention/naive_rows.h"
#include "kernels/cpu/attention/visible_columns.h"

namespace sparse_autotune::cpu_attention {
namespace {

// p and ds of one pair.
struct Pair {
  double p, ds;
};

Pair pair_of(const AttentionBackward& a, DType dtype, int64_t batch, int64_t head, int64_t i,
             int64_t j) {
  const int64_t dim = a.shape.dim, kv_head = head / (a.shape.heads / a.shape.kv_heads);
  const Row q = row_of(a.q, batch, head, i, dtype), dout = row_of(a.dout, batch, head, i, dtype);
  const Row k = row_of(a.k, batch, kv_head, j, dtype), v = row_of(a.v, batch, kv_head, j, dtype);
  double delta = dot(dout, row_of(a.out, batch, head, i, dtype), dim);
  if (a.dlse.data != nullptr) delta -= value_of(a.dlse, batch, head, i, dtype)[0];
  const double lse = value_of(a.lse, batch, head, i, dtype)[0];
  const bool sees_nothing = lse == -std::numeric_limits<double>::infinity();
  const double p = sees_nothing ? 0 : std::exp(a.scale * dot(q, k, dim) - lse);
  return {p, p * (dot(dout, v, dim) - delta)};
}

void backward_row(const AttentionBackward& a, DType dtype, int64_t batch, int64_t head, int64_t i) {
  const AttentionShape& shape = a.shape;
  const int64_t kv_head = head / (shape.heads / shape.kv_heads);
  double sums[kMostDim] = {};
  const int64_t block_row = a.mask.crow_indices == nullptr ? 0 : i / a.mask.block_m;
  for_each_span(rows_of(a.mask, shape, batch, head), block_row, a.mask.block_n, shape.columns,
                [&](int64_t first, int64_t end) {
                  if (a.is_causal) end = std::min(end, i + 1);
                  for (int64_t j = first; j < end; ++j) {
                    const double ds = pair_of(a, dtype, batch, head, i, j).ds;
                    const Row k = row_of(a.k, batch, kv_head, j, dtype);
                    for (int64_t d = 0; d < shape.dim; ++d) sums[d] += a.scale * ds * k[d];
                  }
                });
  const Row dq = row_of(a.dq, batch, head, i, dtype);
  for (int64_t d = 0; d < shape.dim; ++d) dq.set(d, sums[d]);
}

// Column j of one head of k and v: all query heads of its group, and their rows that see it.
void backward_column(const AttentionBackward& a, DType dtype, int64_t batch, int64_t kv_head,
                     int64_t j) {
  const AttentionShape& shape = a.shape;
  const int64_t group = shape.heads / shape.kv_heads;
  double dk_sums[kMostDim] = {}, dv_sums[kMostDim] = {};
  const int64_t block_column = a.mask.crow_indices == nullptr ? 0 : j / a.mask.block_n;
  for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    for_each_span(columns_of(a.mask, a.by_column, shape, batch, head), block_column, a.mask.block_m,
                  shape.rows, [&](int64_t first, int64_t end) {
                    if (a.is_causal) first = std::max(first, j);
                    for (int64_t i = first; i < end; ++i) {
                      const auto [p, ds] = pair_of(a, dtype, batch, head, i, j);
                      const Row q = row_of(a.q, batch, head, i, dtype);
                      const Row dout = row_of(a.dout, batch, head, i, dtype);
                      for (int64_t d = 0; d < shape.dim; ++d) {
                        dk_sums[d] += a.scale * ds * q[d];
                        dv_sums[d] += p * dout[d];
                      }
                    }
                  });
  }
  const Row dk = row_of(a.dk, batch, kv_head, j, dtype),
            dv = row_of(a.dv, batch, kv_head, j, dtype);
  for (int64_t d = 0; d < shape.dim; ++d) {
    dk.set(d, dk_sums[d]);
    dv.set(d, dv_sums[d]);
  }
}

class Backward final : public AttentionNaive {
 public:
  using AttentionNaive::AttentionNaive;

  Status launch(const attention::Problem& p, const attention::Launch& l) const override {
    const AttentionBackward a = attention::backward_arguments(p, l);
    for_each_row(l.parallel, p.batch, p.heads, p.rows, [&](int64_t batch, int64_t head, int64_t i) {
      backward_row(a, p.dtype, batch, head, i);
    });
    for_each_row(l.parallel, p.batch, p.kv_heads, p.columns,
                 [&](int64_t batch, int64_t head, int64_t j) {
                   backward_column(a, p.dtype, batch, head, j);
                 });
    return Status::ok();
  }
};

const Backward kAttentionNaiveBackward{DeviceType::kCpu, "cpu_attention_naive_backward/fp64",
                                       attention::Pass::kBackward};
const Registration kRegisterAttentionNaiveBackward{kAttentionNaiveBackward};

}  // namespace
}  // namespace sparse_autotune::cpu_attention
