#include "ops/matmul.h"

#include <torch/csrc/stable/ops.h>

#include <optional>
#include <utility>

#include "calls/serve.h"
#include "ops/torch_caller.h"

namespace sparse_autotune {
namespace {

template <typename Arguments, typename Call>
void write(const Arguments& a, const Call& call, const Tensor& result) {
  auto product = product_of(a, call, result);
  std::optional<Bound> bound = bind_call(std::move(product.call), a.variant, product.caller);
  if (bound) serve(*bound, a.variant);
}

template <typename Arguments>
Tensor computed(const Arguments& a) {
  const auto call = checked_call(a);
  const DeviceScope scope(a.operand());
  Tensor result = make_result(a, call);
  write(a, call, result);
  return result;
}

}  // namespace

Tensor compute(const MatmulArguments& a) { return computed(a); }
Tensor compute(const SampledArguments& a) { return computed(a); }

void matmul_out(const MatmulArguments& a, const Tensor& out) {
  const MatmulCall call = checked_call(a);
  const TensorView written = view_of(out);
  if (const char* rule = broken_rule_of_result(call, written)) refuse(rule);
  const DeviceScope scope(a.values);
  NormalisedCall unused;
  if (!normalise(call, written, &unused).c) {
    write(a, call, out);
    return;
  }
  const Tensor contiguous = make_result(a, call);
  write(a, call, contiguous);
  Tensor target = out;
  torch::stable::copy_(target, contiguous);
}

}  // namespace sparse_autotune
