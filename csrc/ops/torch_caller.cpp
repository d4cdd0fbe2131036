#include "ops/torch_caller.h"

#include <torch/csrc/inductor/aoti_torch/c/shim.h>

namespace sparse_autotune {
namespace {

bool is_inference(const Tensor& tensor) {
  return call_torch<bool>("aten::is_inference", "", tensor);
}

// -1 for a tensor made under inference mode, which has none and counts as immutable.
int64_t version_of(const Tensor& tensor, int64_t likely) {
  if (likely < 0 && is_inference(tensor)) return -1;
  StableIValue stack[1] = {torch::stable::detail::from(tensor)};
  const auto error = torch_call_dispatcher("aten::_version", "", stack, TORCH_ABI_VERSION);
  if (error != AOTI_TORCH_SUCCESS && likely >= 0 && is_inference(tensor)) return -1;
  TORCH_ERROR_CODE_CHECK(error);
  return torch::stable::detail::to<int64_t>(stack[0]);
}

// A second tensor over the same storage. Who keeps it keeps that memory, even when
// `tensor.data = other` in Python gives the first one other memory.
Tensor alias_of(const Tensor& tensor) { return call_torch<Tensor>("aten::detach", "", tensor); }

}  // namespace

void* TorchCaller::allocate(int64_t bytes) {
  allocated_.push_back(new_bytes(operand_, bytes));
  return allocated_.back().data_ptr();
}

std::array<int64_t, 2> TorchCaller::versions(const std::array<int64_t, 2>& likely) {
  return {version_of(crow_indices_, likely[0]), version_of(col_indices_, likely[1])};
}

std::shared_ptr<const void> TorchCaller::own_indices() {
  return std::make_shared<std::pair<Tensor, Tensor>>(alias_of(crow_indices_),
                                                     alias_of(col_indices_));
}

std::shared_ptr<const void> TorchCaller::own_values() {
  return std::make_shared<Tensor>(alias_of(operand_));
}

}  // namespace sparse_autotune
