#include "ops/matmul.h"

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/ops.h>

#include <memory>
#include <utility>

#include "calls/serve.h"
#include "ops/torch_caller.h"

namespace sparse_autotune {
namespace {

// Returns the pattern's plan, for another call on the same pattern, which it may be `known` from.
template <typename Arguments, typename Call>
std::shared_ptr<Plan> write(const Arguments& a, const Call& call, const Tensor& result,
                            std::shared_ptr<Plan> known = nullptr) {
  auto product = product_of(a, call, result);
  std::optional<Bound> bound =
      bind_call(std::move(product.call), a.variant, product.caller, std::move(known));
  if (!bound) return nullptr;
  serve(*bound, a.variant);
  return bound->plan_of_pattern;
}

// A tensor over the storage of another, without torch's dispatcher.
Tensor tensor_like(const Tensor& tensor, const TensorView& view) {
  AtenTensorHandle made = nullptr;
  TORCH_ERROR_CODE_CHECK(
      aoti_torch__reinterpret_tensor(tensor.get(), view.dims, view.sizes, view.strides, 0, &made));
  return Tensor(made);
}

template <typename Arguments>
Tensor computed(const Arguments& a) {
  const auto call = checked_call(a);
  const DeviceScope scope(a.operand());
  const Tensor result = make_result(a, call);
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

std::tuple<Tensor, Tensor> matmul_backward(const MatmulArguments& forward, const Tensor& grad) {
  const MatmulCall call = checked_call(forward);
  const TensorView given = view_of(grad);
  if (given.dims != call.dense.dims) refuse("the gradient must have the dimensions of the product");
  const GradientCalls calls(call, given);
  MatmulArguments back = forward;
  back.dense = grad;
  back.transpose = !forward.transpose;
  if (const char* rule = broken_rule(calls.of_dense)) refuse(rule);
  const bool grad_left = !call.transposed();
  const SampledArguments sampled{forward.crow_indices,
                                 forward.col_indices,
                                 forward.rows,
                                 forward.cols,
                                 forward.values.size(1),
                                 forward.values.size(2),
                                 tensor_like(grad_left ? grad : forward.dense, calls.of_values.x),
                                 tensor_like(grad_left ? forward.dense : grad, calls.of_values.y),
                                 forward.allow_tf32,
                                 forward.deterministic,
                                 std::nullopt};
  if (const char* rule = broken_rule(calls.of_values)) refuse(rule);
  const DeviceScope scope(forward.values);
  Tensor grad_dense = make_result(back, calls.of_dense);
  std::shared_ptr<Plan> known = write(back, calls.of_dense, grad_dense);
  Tensor grad_values = make_result(sampled, calls.of_values);
  write(sampled, calls.of_values, grad_values, std::move(known));
  return {std::move(grad_dense), std::move(grad_values)};
}

}  // namespace sparse_autotune
