// The simplest correct attention on a CPU: every mask, block size and dtype, computed in fp64. The
// kernel to read first, and the variant that everything else is compared with.
//
// A row of the output is one pass over the columns that it sees. Sums are kept relative to the
// largest score so far, and rescaled when a larger one comes ("online softmax"), so that no
// exponential overflows.
#include <cmath>
#include <limits>

#include "kernels/cpu/attention/naive_rows.h"
#include "kernels/cpu/attention/visible_columns.h"

namespace sparse_autotune::cpu_attention {
namespace {

void forward_row(const AttentionForward& a, DType dtype, int64_t batch, int64_t head, int64_t i) {
  const AttentionShape& shape = a.shape;
  const int64_t kv_head = head / (shape.heads / shape.kv_heads);
  const Row q = row_of(a.q, batch, head, i, dtype), out = row_of(a.out, batch, head, i, dtype);
  double sums[kMostDim] = {}, total = 0, largest = -std::numeric_limits<double>::infinity();
  const int64_t block_row = a.mask.crow_indices == nullptr ? 0 : i / a.mask.block_m;
  for_each_span(rows_of(a.mask, shape, batch, head), block_row, a.mask.block_n, shape.columns,
                [&](int64_t first, int64_t end) {
                  if (a.is_causal) end = std::min(end, i + 1);
                  for (int64_t j = first; j < end; ++j) {
                    const Row k = row_of(a.k, batch, kv_head, j, dtype);
                    const Row v = row_of(a.v, batch, kv_head, j, dtype);
                    const double score = a.scale * dot(q, k, shape.dim);
                    if (score == -std::numeric_limits<double>::infinity()) continue;
                    if (score > largest) {
                      const double factor = std::exp(largest - score);
                      for (int64_t d = 0; d < shape.dim; ++d) sums[d] *= factor;
                      total *= factor;
                      largest = score;
                    }
                    const double p = std::exp(score - largest);
                    for (int64_t d = 0; d < shape.dim; ++d) sums[d] += p * v[d];
                    total += p;
                  }
                });
  const bool sees_nothing = total == 0;
  for (int64_t d = 0; d < shape.dim; ++d) out.set(d, sees_nothing ? 0 : sums[d] / total);
  if (a.lse.data != nullptr) {
    const Row lse = value_of(a.lse, batch, head, i, dtype);
    lse.set(0, sees_nothing ? -std::numeric_limits<double>::infinity() : largest + std::log(total));
  }
}

class Forward final : public AttentionNaive {
 public:
  using AttentionNaive::AttentionNaive;

  Status launch(const attention::Problem& p, const attention::Launch& l) const override {
    const AttentionForward a = attention::forward_arguments(p, l);
    for_each_row(l.parallel, p.batch, p.heads, p.rows, [&](int64_t batch, int64_t head, int64_t i) {
      forward_row(a, p.dtype, batch, head, i);
    });
    return Status::ok();
  }
};

const Forward kAttentionNaive{DeviceType::kCpu, "cpu_attention_naive/fp64"};
const Registration kRegisterAttentionNaive{kAttentionNaive};

}  // namespace
}  // namespace sparse_autotune::cpu_attention
