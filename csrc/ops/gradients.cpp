#include "ops/gradients.h"

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <memory>
#include <utility>
#include <vector>

#include "ops/matmul.h"
#include "ops/sampled_arguments.h"

namespace sparse_autotune {
namespace {

// A view with its last two dimensions swapped, without torch's dispatcher.
Tensor turned(const Tensor& tensor) {
  const int64_t dims = tensor.dim();
  std::vector<int64_t> sizes, strides;
  for (int64_t d = 0; d < dims; ++d) {
    const int64_t from = d < dims - 2 ? d : 2 * dims - 3 - d;
    sizes.push_back(tensor.size(from));
    strides.push_back(tensor.stride(from));
  }
  AtenTensorHandle made = nullptr;
  TORCH_ERROR_CODE_CHECK(
      aoti_torch__reinterpret_tensor(tensor.get(), dims, sizes.data(), strides.data(), 0, &made));
  return Tensor(made);
}

// (..., rows of A, n) and (..., n, cols of A), whose product holds the gradient of A.
std::pair<Tensor, Tensor> sampled_operands(const MatmulArguments& a, const Tensor& grad) {
  const bool grad_left = a.transpose == a.sparse_right;
  const Tensor &left = grad_left ? grad : a.dense, &right = grad_left ? a.dense : grad;
  if (a.dense.dim() == 1) {
    return {torch::stable::unsqueeze(left, 1), torch::stable::unsqueeze(right, 0)};
  }
  if (a.sparse_right) return {turned(left), right};
  return {left, turned(right)};
}

}  // namespace

std::tuple<Tensor, Tensor> gradients(const MatmulArguments& forward, const Tensor& grad) {
  if (forward.values.dim() != 3) refuse("values must have three dimensions");
  if (forward.dense.dim() == 0 || grad.dim() != forward.dense.dim()) {
    refuse("the gradient must have the dimensions of the product");
  }
  MatmulArguments back = forward;
  back.dense = grad;
  back.bias = std::nullopt;
  back.transpose = !forward.transpose;
  back.activation = 0;
  back.variant = std::nullopt;
  const std::vector<int64_t> sizes = result_sizes(back);
  const DeviceScope scope(forward.values);
  Tensor grad_dense = make_result(back, sizes);
  std::optional<Bound> product = bind(back, grad_dense);
  if (product) serve(*product, std::nullopt);

  auto [x, y] = sampled_operands(forward, grad);
  const SampledArguments sampled{
      forward.crow_indices,   forward.col_indices,    forward.rows, forward.cols,
      forward.values.size(1), forward.values.size(2), std::move(x), std::move(y),
      forward.allow_tf32,     forward.deterministic,  std::nullopt};
  Tensor grad_values = make_sampled_result(sampled);
  // The first product has looked the pattern up.
  std::shared_ptr<Plan> known = product ? product->plan_of_pattern : nullptr;
  if (std::optional<Bound> bound = bind_sampled(sampled, grad_values, std::move(known))) {
    serve(*bound, std::nullopt);
  }
  return {std::move(grad_dense), std::move(grad_values)};
}

}  // namespace sparse_autotune
