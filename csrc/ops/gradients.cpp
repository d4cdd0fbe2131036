#include "ops/gradients.h"

#include <torch/csrc/stable/ops.h>

#include <utility>

#include "ops/matmul.h"
#include "ops/sampled_matmul.h"

namespace sparse_autotune {
namespace {

// (..., rows of A, n) and (..., n, cols of A), whose product holds the gradient of A.
std::pair<Tensor, Tensor> sampled_operands(const MatmulArguments& a, const Tensor& grad) {
  const bool grad_left = a.transpose == a.sparse_right;
  const Tensor &left = grad_left ? grad : a.dense, &right = grad_left ? a.dense : grad;
  if (a.dense.dim() == 1) {
    return {torch::stable::unsqueeze(left, 1), torch::stable::unsqueeze(right, 0)};
  }
  if (a.sparse_right) return {torch::stable::transpose(left, -2, -1), right};
  return {left, torch::stable::transpose(right, -2, -1)};
}

}  // namespace

std::tuple<Tensor, Tensor> gradients(const MatmulArguments& forward, const Tensor& grad) {
  if (forward.values.dim() != 3) refuse("values must have three dimensions");
  if (forward.dense.dim() == 0 || grad.dim() != forward.dense.dim()) {
    refuse("the gradient must have the dimensions of the product");
  }
  MatmulArguments turned = forward;
  turned.dense = grad;
  turned.bias = std::nullopt;
  turned.transpose = !forward.transpose;
  turned.activation = 0;
  turned.variant = std::nullopt;
  Tensor grad_dense = matmul(turned);
  auto [x, y] = sampled_operands(forward, grad);
  Tensor grad_values =
      sampled_matmul({forward.crow_indices, forward.col_indices, forward.rows, forward.cols,
                      forward.values.size(1), forward.values.size(2), std::move(x), std::move(y),
                      forward.allow_tf32, forward.deterministic, std::nullopt});
  return {std::move(grad_dense), std::move(grad_values)};
}

}  // namespace sparse_autotune
