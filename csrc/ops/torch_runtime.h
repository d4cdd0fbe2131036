// What the operators need of torch beyond tensors: stream, scratch, threads, version counters.
#pragma once

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>

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
  std::optional<torch::stable::accelerator::DeviceGuard> guard_;
  std::optional<CurrentDevice> current_;  // begins first, and ends first
};

// Version counters of two tensors; -1 for a tensor made under inference mode, which has none and
// counts as immutable. Where those that are `likely` are versions, this takes half as long.
std::array<int64_t, 2> versions_of(const Tensor& first, const Tensor& second,
                                   const std::array<int64_t, 2>& likely);

// A second tensor over the same storage. Who keeps it keeps that memory, even when
// `tensor.data = other` in Python gives the first one other memory.
Tensor alias_of(const Tensor& tensor);

// Uninitialised memory on the device of `like`, from torch's allocator.
Tensor empty_strided(const Tensor& like, const int64_t* sizes, const int64_t* strides,
                     int64_t dims);
Tensor empty_strided(const Tensor& like, const int64_t* sizes, const int64_t* strides, int64_t dims,
                     DType dtype);
Tensor empty_strided(const Tensor& like, const int64_t* sizes, const int64_t* strides, int64_t dims,
                     IndexType type);
Tensor empty_bytes(const Tensor& like, int64_t bytes);

// A tensor over memory that somebody else owns.
Tensor tensor_over(const void* data, std::initializer_list<int64_t> sizes,
                   std::initializer_list<int64_t> strides, int32_t dtype, const Device& device);

int32_t torch_dtype(DType dtype);
int32_t torch_dtype(IndexType type);

// A uint8 tensor on the CPU that holds `text`: strings returned by operators leak in torch 2.11.
Tensor text_tensor(const std::string& text);

}  // namespace sparse_autotune
