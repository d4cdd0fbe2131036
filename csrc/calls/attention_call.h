// Attention as its caller describes it, the rules that it must keep, and its way to a launch.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "calls/race_call.h"
#include "calls/tensor_view.h"
#include "exported.h"
#include "operators/attention/attention.h"

namespace sparse_autotune {

struct AttentionCall {
  TensorView q, k, v;  // (batch, heads, rows, dim), the last dimension contiguous
  // Of a mask: (patterns, block rows + 1) with up to two leading dimensions, and (capacity,).
  std::optional<TensorView> crow_indices, col_indices;
  int64_t block_m, block_n;
  bool is_causal;
  std::optional<double> scale;
  int64_t nnzb;
  bool allow_tf32, deterministic;
};

// Of lse and of its gradient, where `call` keeps its rules.
inline ElementType type_of_lse(const AttentionCall& call) {
  return call.q.type == ElementType::kFloat64 ? ElementType::kFloat64 : ElementType::kFloat32;
}

// Whether both are of four dimensions, and of the same sizes.
SPARSE_AUTOTUNE_API bool same_shape(const TensorView& a, const TensorView& b);
// Where that holds: whether `result` lies as results of such an operand do (attention::dense_like).
SPARSE_AUTOTUNE_API bool lies_as_result_of(const TensorView& operand, const TensorView& result);

// What a backward pass has besides.
struct AttentionGradients {
  TensorView dout;                                      // as q
  TensorView out;                                       // lies as a result of q
  TensorView lse;                                       // contiguous, (batch, heads, rows)
  std::optional<TensorView> dlse;                       // likewise
  std::optional<TensorView> ccol_indices, row_indices;  // the mask by columns
};

// The first rule that a call breaks, in words; null where it keeps all. Python explains user
// errors; these are the rules that protect memory. On a CPU they read the mask.
SPARSE_AUTOTUNE_API const char* broken_rule(const AttentionCall& call);
SPARSE_AUTOTUNE_API const char* broken_rule(const AttentionCall& call,
                                            const AttentionGradients& gradients);

// A call with its device: everything that a launch needs but the results and the variant.
struct AttentionBound {
  attention::Problem problem{};
  attention::Launch launch;
  const Device* device = nullptr;
  uint64_t generation = 0;
  bool is_capturing = false;

  // Nobody is to write anything, or nothing can be seen.
  bool is_empty() const {
    return problem.batch * problem.heads * problem.rows == 0 || problem.columns == 0;
  }
};
// `call` keeps its rules.
SPARSE_AUTOTUNE_API AttentionBound bind_attention(const AttentionCall& call,
                                                  const AttentionGradients* gradients, void* stream,
                                                  const Parallel& parallel);

// Chooses the variant, unless one is asked for, and launches it: where that fails, the next best.
// `allocate` gives memory until all that is enqueued is over.
using Allocate = std::function<void*(int64_t bytes)>;
SPARSE_AUTOTUNE_API void serve(AttentionBound& bound, const std::optional<std::string>& variant,
                               const Allocate& allocate);

// Launches what was decided for exactly this call before. False, and all is still to be done, where
// nothing was, where `allocate` gives null, and where the launch fails.
SPARSE_AUTOTUNE_API bool serve_remembered(const AttentionBound& bound, std::string_view variant,
                                          const Allocate& allocate);

// The text of a race's record.
SPARSE_AUTOTUNE_API std::string race_attention(AttentionBound& bound, const RaceOrder& order);

}  // namespace sparse_autotune
