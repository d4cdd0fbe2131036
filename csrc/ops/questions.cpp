#include "ops/questions.h"

#include <utility>

#include "ops/torch_caller.h"

namespace sparse_autotune {
namespace {

template <typename Arguments, typename Call>
std::string answer(const Arguments& a, const Call& call, const Tensor& result,
                   const RaceArguments& race) {
  auto product = product_of(a, call, result);
  if (race.dry_run) {
    const Bound bound = bind_for_questions(std::move(product.call), product.caller);
    return legality_of(bound.call.problem, *bound.device);
  }
  if (a.col_indices.size(0) == 0) return "";  // bind_call() would write the result
  std::optional<Bound> bound = bind_call(std::move(product.call), a.variant, product.caller);
  return bound ? race_bound(*bound, race.order) : "";
}

}  // namespace

std::string race_text(const MatmulArguments& a, const RaceArguments& race) {
  const MatmulCall call = checked_call(a);
  // matmul_out() too turns to a contiguous result where no variant can write into `out`.
  bool direct = false;
  if (race.out.has_value()) {
    const TensorView written = view_of(*race.out);
    if (const char* rule = broken_rule_of_result(call, written)) refuse(rule);
    NormalisedCall unused;
    direct = !normalise(call, written, &unused).c;
  }
  const DeviceScope scope(a.values);
  return answer(a, call, direct ? *race.out : make_result(a, call), race);
}

std::string race_text(const SampledArguments& a, const RaceArguments& race) {
  const SampledCall call = checked_call(a);
  const DeviceScope scope(a.x);
  return answer(a, call, make_result(a, call), race);
}

std::string race_text(const std::string& problem, const Tensor& crow, const Tensor& col,
                      const std::string& selector) {
  const TensorView crow_view = view_of(crow), col_view = view_of(col);
  if (!crow.is_contiguous() || !col.is_contiguous()) refuse("indices must be contiguous");
  const DeviceScope scope(crow);
  TorchCaller caller(crow, col, crow);
  return race_problem(problem, crow_view, col_view, selector, caller);
}

}  // namespace sparse_autotune
