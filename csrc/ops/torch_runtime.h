// What the operators need of torch beyond tensors: stream, scratch, threads.
#pragma once

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "calls/tensor_view.h"
#include "plan/current_device.h"
#include "variant.h"

namespace sparse_autotune {

using torch::stable::Tensor;

// One of torch's operators, by the dispatcher. An operator that returns an argument which it wrote
// returns a second handle of it.
template <typename Result, typename... Arguments>
Result call_torch(const char* name, const char* overload, const Arguments&... arguments) {
  StableIValue stack[] = {torch::stable::detail::from(arguments)...};
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher(name, overload, stack, TORCH_ABI_VERSION));
  return torch::stable::detail::to<Result>(stack[0]);
}

// torch's own threads.
Parallel torch_parallel();

// torch's current stream on that device, a cudaStream_t.
void* current_stream(int ordinal);

// Makes the tensor's device the current one for torch and for the CUDA runtime linked into the
// core.
class DeviceScope {
 public:
  explicit DeviceScope(const Tensor& tensor);

 private:
  // Nested: the first to begin is the last to end. Torch's guard, which finds the device that
  // `current_` has set, goes back to that one.
  std::optional<CurrentDevice> current_;
  std::optional<torch::stable::accelerator::DeviceGuard> guard_;
};

// Uninitialised memory on the device of `like`, from torch's allocator.
Tensor new_contiguous(const Tensor& like, const std::vector<int64_t>& sizes, ElementType type);
Tensor new_bytes(const Tensor& like, int64_t bytes);

// A tensor over memory that somebody else owns.
Tensor tensor_over(const void* data, std::initializer_list<int64_t> sizes,
                   std::initializer_list<int64_t> strides, ElementType type, const Device& device);

ElementType element_type(const Tensor& tensor);

// A uint8 tensor on the CPU that holds `text`: strings returned by operators leak in torch 2.11.
Tensor text_tensor(const std::string& text);

}  // namespace sparse_autotune
