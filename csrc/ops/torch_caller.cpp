#include "ops/torch_caller.h"

#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <utility>

namespace sparse_autotune {
namespace {

template <typename Arguments, typename Call>
TorchProduct<Arguments> normalised(Arguments a, const Call& call, const Tensor& result) {
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

}  // namespace

void* TorchCaller::stream(int ordinal) { return current_stream(ordinal); }

Parallel TorchCaller::parallel() { return torch_parallel(); }

void* TorchCaller::allocate(int64_t bytes) {
  allocated_.push_back(empty_bytes(operand_, bytes));
  return allocated_.back().data_ptr();
}

std::array<int64_t, 2> TorchCaller::versions(const std::array<int64_t, 2>& likely) {
  return versions_of(crow_indices_, col_indices_, likely);
}

std::shared_ptr<const void> TorchCaller::own_indices() {
  return std::make_shared<std::pair<Tensor, Tensor>>(alias_of(crow_indices_),
                                                     alias_of(col_indices_));
}

std::shared_ptr<const void> TorchCaller::own_values() {
  return std::make_shared<Tensor>(alias_of(operand_));
}

TorchProduct<MatmulArguments> product_of(const MatmulArguments& a, const MatmulCall& call,
                                         const Tensor& result) {
  return normalised(a, call, result);
}
TorchProduct<SampledArguments> product_of(const SampledArguments& a, const SampledCall& call,
                                          const Tensor& result) {
  return normalised(a, call, result);
}

void prepare_pattern(const Tensor& crow, const Tensor& col, int64_t rows, int64_t cols,
                     int64_t block_m, int64_t block_k) {
  const PatternCall pattern{view_of(crow), view_of(col), rows, cols, block_m, block_k};
  if (const char* rule = broken_rule(pattern)) refuse(rule);
  if (!crow.is_contiguous() || !col.is_contiguous()) refuse("indices must be contiguous");
  if (col.size(0) == 0) return;
  const DeviceScope scope(crow);
  TorchCaller caller(crow, col, crow);
  if (find_plan(key_of(pattern), caller) == nullptr) {
    refuse("a plan cannot be built while a CUDA graph is being captured");
  }
}

}  // namespace sparse_autotune
