// Products and attention that were decided before, past the dispatcher and without tensor objects.
//
// Python comes here where the dispatcher would add nothing but its time: in plain eager calls, and
// in compiled graphs (bindings/direct_call.cpp). What is launched is what the plan remembers for
// exactly this call or, of a product, what the tuner has settled for patterns of this kind: a new
// pattern gets its plan here. Nothing is raced; everything else is left to the operator.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string_view>

#include "calls/attention_call.h"
#include "calls/call.h"
#include "plan/mask_lists.h"

namespace sparse_autotune::direct {

// What a call brings besides its tensors.
struct Circumstances {
  std::array<int64_t, 2> versions{};  // how often crow_indices and col_indices were written
  std::string_view variant;           // the one asked for; empty: the tuner's choice
  // Where a GPU's workspace comes from, in stream order, for the time of the call; null where there
  // is none. On a CPU there is enough.
  std::function<void*(int64_t bytes)> scratch;
  // New handles (AtenTensorHandle), the receiver's, of crow_indices, col_indices and the operand
  // that a Caller lies beside; nulls where there are none to be had. Empty: no plan is made here.
  std::function<std::array<void*, 3>()> handles;
};

// The calls keep their rules (call.h), and the results are of the right shape and memory of the
// caller's. False when the operator has to do it, all of it. They throw std::runtime_error when a
// launch fails.
SPARSE_AUTOTUNE_API bool matmul(const MatmulCall& call, const TensorView& result,
                                const Circumstances& here);
SPARSE_AUTOTUNE_API bool sampled_matmul(const SampledCall& call, const TensorView& result,
                                        const Circumstances& here);
// Both gradients of a product.
SPARSE_AUTOTUNE_API bool gradients(const GradientCalls& calls, const TensorView& grad_dense,
                                   const TensorView& grad_values, const Circumstances& here);
// Places for attention's results; and new handles (AtenTensorHandle), the receiver's, of those that
// a variant handed over, whose places nobody wrote.
struct AttentionResults {
  std::array<TensorView, 3> places;
  std::array<void*, 3> own{};
};
// Versions of its mask do not matter: nothing is kept that was made of one.
SPARSE_AUTOTUNE_API bool attention(const AttentionCall& call, AttentionResults* results,
                                   const Circumstances& here);
// Its gradients, which list the blocks of a mask by column themselves: `gradients` has none such.
// Whether those keep their rules is looked at here.
SPARSE_AUTOTUNE_API bool attention_gradients(const AttentionCall& call,
                                             AttentionGradients gradients,
                                             AttentionResults* results, const Circumstances& here);

// The lists of a mask on a GPU, the current one, of a rule whose ends are on the host.
SPARSE_AUTOTUNE_API bool mask_of_rule(const MaskGrid& shape, const MaskRule& rule,
                                      int64_t known_ends, const MaskLists& out, int32_t ordinal);

}  // namespace sparse_autotune::direct
