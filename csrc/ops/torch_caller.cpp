#include "ops/torch_caller.h"

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
  allocated_.push_back(new_bytes(operand_, bytes));
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

}  // namespace sparse_autotune
