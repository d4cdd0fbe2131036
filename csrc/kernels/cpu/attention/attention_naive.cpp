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
#include "operators/attention/attention.h"

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

class AttentionNaive final : public attention::Variant {
 public:
  using attention::Variant::Variant;

  Support supports(const attention::Problem& p, const Device&) const override {
    return supports_dim(p.dim);
  }

  double estimate_us(const attention::Problem& p, const Device& d) const override {
    return attention::nnz_flops(p) / (0.2e3 * d.threads) + 1.0;  // about 0.2 GFLOP/s a thread
  }

  Status launch(const attention::Problem& p, const attention::Launch& l) const override {
    const AttentionForward a = attention::forward_arguments(p, l);
    parallel_for(l.parallel, 0, p.batch * p.heads * p.rows, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t head = i / p.rows;
        forward_row(a, p.dtype, head / p.heads, head % p.heads, i % p.rows);
      }
    });
    return Status::ok();
  }
};

const AttentionNaive kAttentionNaive{DeviceType::kCpu, "cpu_attention_naive/fp64"};
const Registration kRegisterAttentionNaive{kAttentionNaive};

}  // namespace
}  // namespace sparse_autotune::cpu_attention
