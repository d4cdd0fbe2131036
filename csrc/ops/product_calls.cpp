#include "ops/product_calls.h"

#include <torch/csrc/stable/ops.h>

#include <utility>

#include "calls/serve.h"
#include "ops/torch_caller.h"

namespace sparse_autotune {
namespace {

template <typename Arguments, typename Call>
Tensor new_result(const Arguments& a, const Call& call) {
  return new_contiguous(a.operand(), call.result_sizes(), element_type(a.operand()));
}

// A call that kernels can serve: what none of them reads where it lies was made contiguous.
template <typename Arguments>
struct Served {
  Arguments arguments;  // whose memory the call's is
  NormalisedCall call;
  TorchCaller caller;
};

template <typename Arguments, typename Call>
Served<Arguments> served(Arguments a, const Call& call, const Tensor& result) {
  const TensorView written = view_of(result);
  NormalisedCall normal;
  if (const Copies copies = normalise(call, written, &normal); copies.any()) {
    // Neither rows nor columns contiguous: torch's own matmul copies such operands too.
    a = contiguous(std::move(a), copies);
    normal = {};
    if (normalise(checked_call(a), written, &normal).any()) {
      refuse("a result with neither contiguous rows nor contiguous columns");
    }
  }
  TorchCaller caller(a.crow_indices, a.col_indices, a.operand());
  return {std::move(a), std::move(normal), std::move(caller)};
}

template <typename Arguments, typename Call>
void write(const Arguments& a, const Call& call, const Tensor& result) {
  auto product = served(a, call, result);
  std::optional<Bound> bound = bind_call(std::move(product.call), a.variant, product.caller);
  if (bound) serve(*bound, a.variant);
}

template <typename Arguments>
Tensor computed(const Arguments& a) {
  const auto call = checked_call(a);
  const DeviceScope scope(a.operand());
  Tensor result = new_result(a, call);
  write(a, call, result);
  return result;
}

// `out` where kernels can write there, otherwise a new contiguous tensor in its place.
Tensor written_for(const Tensor& out, const MatmulArguments& a, const MatmulCall& call) {
  const TensorView view = view_of(out);
  if (const char* rule = broken_rule_of_result(call, view)) refuse(rule);
  NormalisedCall unused;
  return normalise(call, view, &unused).c ? new_result(a, call) : out;
}

template <typename Arguments, typename Call>
std::string answer(const Arguments& a, const Call& call, const Tensor& result,
                   const RaceArguments& race) {
  auto product = served(a, call, result);
  if (race.dry_run) {
    const Bound bound = bind_for_questions(std::move(product.call), product.caller);
    return legality_of(bound.call.problem, *bound.device);
  }
  if (a.col_indices.size(0) == 0) return "";  // bind_call() would write the result
  std::optional<Bound> bound = bind_call(std::move(product.call), a.variant, product.caller);
  return bound ? race_bound(*bound, race.order) : "";
}

void check_contiguous(const Tensor& crow, const Tensor& col) {
  if (!crow.is_contiguous() || !col.is_contiguous()) refuse("indices must be contiguous");
}

}  // namespace

Tensor compute(const MatmulArguments& a) { return computed(a); }
Tensor compute(const SampledArguments& a) { return computed(a); }

void matmul_out(const MatmulArguments& a, const Tensor& out) {
  const MatmulCall call = checked_call(a);
  const DeviceScope scope(a.values);
  const Tensor written = written_for(out, a, call);
  write(a, call, written);
  Tensor target = out;
  if (written.get() != out.get()) torch::stable::copy_(target, written);
}

void prepare_pattern(Tensor crow, Tensor col, int64_t rows, int64_t cols, int64_t block_m,
                     int64_t block_k) {
  const PatternCall pattern{view_of(crow), view_of(col), rows, cols, block_m, block_k};
  if (const char* rule = broken_rule(pattern)) refuse(rule);
  check_contiguous(crow, col);
  if (col.size(0) == 0) return;
  const DeviceScope scope(crow);
  TorchCaller caller(crow, col, crow);
  if (find_plan(key_of(pattern), caller) == nullptr) {
    refuse("a plan cannot be built while a CUDA graph is being captured");
  }
}

std::string race_text(const MatmulArguments& a, const RaceArguments& race) {
  const MatmulCall call = checked_call(a);
  const DeviceScope scope(a.values);
  return answer(a, call, race.out ? written_for(*race.out, a, call) : new_result(a, call), race);
}

std::string race_text(const SampledArguments& a, const RaceArguments& race) {
  const SampledCall call = checked_call(a);
  const DeviceScope scope(a.x);
  return answer(a, call, new_result(a, call), race);
}

std::string race_text(const std::string& problem, const Tensor& crow, const Tensor& col,
                      const std::string& selector) {
  const TensorView crow_view = view_of(crow), col_view = view_of(col);
  check_contiguous(crow, col);
  const DeviceScope scope(crow);
  TorchCaller caller(crow, col, crow);
  return race_problem(problem, crow_view, col_view, selector, caller);
}

}  // namespace sparse_autotune
