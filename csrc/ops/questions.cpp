#include "ops/questions.h"

#include <utility>

#include "calls/race_call.h"
#include "ops/torch_caller.h"

namespace sparse_autotune {
namespace {

template <typename Arguments>
std::string answer(TorchProduct<Arguments> product, const RaceArguments& race) {
  if (race.dry_run) {
    return legality_of(bind_for_questions(std::move(product.call), product.caller));
  }
  std::optional<Bound> bound =
      bind_call(std::move(product.call), product.arguments.variant, product.caller);
  if (!bound) return "";
  return race_bound(
      *bound, {race.variants.value_or(""), race.rounds, race.budget_s, race.eliminate, race.save});
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
  const Tensor result = direct ? *race.out : make_result(a, call);
  // Binding such a product would write the result.
  if (a.values.size(0) == 0 && !race.dry_run) return "";
  return answer(product_of(a, call, result), race);
}

std::string race_text(const SampledArguments& a, const RaceArguments& race) {
  const SampledCall call = checked_call(a);
  const DeviceScope scope(a.x);
  const Tensor result = make_result(a, call);
  return answer(product_of(a, call, result), race);
}

}  // namespace sparse_autotune
