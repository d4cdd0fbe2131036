#include "ops/torch_caller.h"

#include <utility>

namespace sparse_autotune {
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

}  // namespace sparse_autotune
