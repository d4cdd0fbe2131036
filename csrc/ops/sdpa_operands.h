// What PyTorch's scaled_dot_product_attention takes, over a launch's memory.
#pragma once

#include <algorithm>
#include <array>
#include <initializer_list>
#include <optional>

#include "operators/attention/attention.h"
#include "ops/dispatched.h"
#include "ops/handed_over.h"
#include "ops/torch_runtime.h"

namespace sparse_autotune {

// The first results of one of torch's operators, which returns `kAll`; `others` are those of the
// rest that are tensors, too, and are let go.
template <size_t kResults, size_t kAll = kResults, typename... Arguments>
std::array<Tensor, kResults> call_torch_for(const char* name, std::initializer_list<size_t> others,
                                            const Arguments&... arguments) {
  constexpr size_t kSlots = std::max(kAll, sizeof...(Arguments));
  std::array<StableIValue, kSlots> stack = {torch::stable::detail::from(arguments)...};
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher(name, "", stack.data(), TORCH_ABI_VERSION));
  std::array<Tensor, kResults> results;
  for (size_t i = 0; i < kResults; ++i) results[i] = torch::stable::detail::to<Tensor>(stack[i]);
  for (const size_t i : others) static_cast<void>(torch::stable::detail::to<Tensor>(stack[i]));
  return results;
}

struct AttentionViews {
  Tensor q, k, v, out, lse;

  AttentionViews(const attention::Problem& problem, const attention::Launch& launch);
};
struct SdpaOperands : AttentionViews {
  std::optional<Tensor> mask;  // added to scores: 0, or minus infinity

  SdpaOperands(const attention::Problem& problem, const attention::Launch& launch);
};
// Those of q, k and v.
std::array<Tensor, 3> gradients_of(const attention::Problem& problem,
                                   const attention::Launch& launch);
Tensor gradient_of_out(const attention::Problem& problem, const attention::Launch& launch);
// Of the shape of lse.
Tensor row_values(const attention::Problem& problem, const attention::Launch& launch,
                  const void* data);

// torch's kernels on the CPU, of either pass: they take the mask as a dense one.
class DenseMaskSdpa : public attention::Variant {
 public:
  using attention::Variant::Variant;

  double estimate_us(const attention::Problem& p, const Device& d) const override;
  int64_t prepared_bytes(const attention::Problem& p, const Device& d) const override;
  Status prepare(const attention::Problem& p, const attention::Launch& l) const override;
  bool multiplies_padding() const override { return true; }
};

// Calls visit(batch, head, row) for rows that see no column. torch does not say what becomes of
// these.
template <typename Visit>
void for_each_unseeing_row(const attention::Problem& p, const attention::Launch& l, Visit&& visit) {
  if (!attention::has_mask(p)) return;  // then each row sees column 0
  const int64_t lines = attention::block_rows(p);
  for (int64_t head = 0; head < p.batch * p.heads; ++head) {
    const int64_t pattern =
        head / p.heads * p.mask_batch_stride + head % p.heads * p.mask_head_stride;
    const int32_t* const crow = l.crow_indices + pattern * (lines + 1);
    for (int64_t row = 0; row < p.rows; ++row) {
      const int64_t line = row / p.block_m;
      bool sees = false;
      for (int64_t i = crow[line]; i < crow[line + 1] && !sees; ++i) {
        sees = !p.is_causal || l.col_indices[i] * p.block_n <= row;
      }
      if (!sees) visit(head / p.heads, head % p.heads, row);
    }
  }
}

}  // namespace sparse_autotune
