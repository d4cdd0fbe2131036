// Registered variants of attention. Forward the operator is
//   (Tensor q, Tensor k, Tensor v, Tensor? crow_indices, Tensor? col_indices, int block_m,
//    int block_n, bool is_causal, float scale, Tensor(a!) out, Tensor(b!) lse) -> int
// and backward
//   (Tensor grad_out, Tensor? grad_lse, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse,
//    Tensor? crow_indices, Tensor? col_indices, Tensor? ccol_indices, Tensor? row_indices,
//    int block_m, int block_n, bool is_causal, float scale, Tensor(a!) grad_q, Tensor(b!) grad_k,
//    Tensor(c!) grad_v) -> int
// Begins of rows and columns are (batch or 1, heads or 1, lines + 1).
#include <optional>

#include "ops/registered_variant.h"
#include "ops/sdpa_operands.h"

namespace sparse_autotune {
namespace {

using attention::Pass;

class RegisteredAttention final
    : public RegisteredAs<attention::Variant, Pass, attention::Problem, attention::Launch> {
 public:
  using RegisteredAs::RegisteredAs;

 private:
  using Problem = attention::Problem;
  using Launch = attention::Launch;

  static std::optional<Tensor> begins(const int32_t* indices, int64_t lines, const Problem& p,
                                      const Launch& l) {
    if (!has_mask(p)) return std::nullopt;
    const int64_t heads = p.mask_head_stride > 0 ? p.heads : 1;
    return tensor_over(indices, {p.patterns / heads, heads, lines + 1},
                       {heads * (lines + 1), lines + 1, 1}, element_type(IndexType::kInt32),
                       *l.device);
  }
  static std::optional<Tensor> blocks(const int32_t* indices, int64_t capacity, const Problem& p,
                                      const Launch& l) {
    if (!has_mask(p)) return std::nullopt;
    return tensor_over(indices, {capacity}, {1}, element_type(IndexType::kInt32), *l.device);
  }

  int64_t call(const char* name, const Problem& p, const Launch& l) const override {
    const AttentionViews t(p, l);
    const auto crow = begins(l.crow_indices, block_rows(p), p, l);
    const auto col = blocks(l.col_indices, p.capacity, p, l);
    if (p.pass == Pass::kForward) {
      return call_torch<int64_t>(name, "", t.q, t.k, t.v, crow, col, p.block_m, p.block_n,
                                 p.is_causal, l.scale, t.out, t.lse);
    }
    const auto ccol = begins(l.ccol_indices, block_columns(p), p, l);
    const auto row = blocks(l.row_indices, p.row_capacity, p, l);
    std::optional<Tensor> of_lse;
    if (p.has_dlse) of_lse = row_values(p, l, l.dlse);
    const auto [dq, dk, dv] = gradients_of(p, l);
    return call_torch<int64_t>(name, "", gradient_of_out(p, l), of_lse, t.q, t.k, t.v, t.out, t.lse,
                               crow, col, ccol, row, p.block_m, p.block_n, p.is_causal, l.scale, dq,
                               dk, dv);
  }
};

}  // namespace

const AnyVariant* registered_attention(const api::RegisteredVariant& facts) {
  for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
    if (attention::operator_of(pass).name() == facts.op)
      return new RegisteredAttention(facts, pass);
  }
  return nullptr;
}

}  // namespace sparse_autotune
