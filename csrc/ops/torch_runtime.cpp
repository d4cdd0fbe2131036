#include "ops/torch_runtime.h"

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <cstring>

#ifdef SPARSE_AUTOTUNE_WITH_CUDA
#include <dlfcn.h>
#endif

namespace sparse_autotune {
namespace {

using torch::headeronly::ScalarType;

// In the order of ElementType.
constexpr std::array kScalarTypes = {ScalarType::Half,   ScalarType::BFloat16, ScalarType::Float,
                                     ScalarType::Double, ScalarType::Int,      ScalarType::Long};

ScalarType scalar_type(ElementType type) { return kScalarTypes.at(static_cast<size_t>(type)); }

}  // namespace

Parallel torch_parallel() {
  Parallel parallel;
  parallel.run = [](int64_t begin, int64_t end, int64_t grain, Parallel::Body body, void* context) {
    TORCH_ERROR_CODE_CHECK(torch_parallel_for(begin, end, grain, body, context));
  };
  parallel.threads = static_cast<int>(torch::stable::get_num_threads());
  return parallel;
}

#ifdef SPARSE_AUTOTUNE_WITH_CUDA

void* current_stream(int ordinal) {
  // Not linked: a CPU build of torch has no such function, and the one library must load there.
  using Function = AOTITorchError (*)(int32_t, void**);
  static const auto function = [] {
    void* cuda = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
    return cuda == nullptr
               ? nullptr
               : reinterpret_cast<Function>(dlsym(cuda, "aoti_torch_get_current_cuda_stream"));
  }();
  STD_TORCH_CHECK(function != nullptr, "a CUDA tensor without libtorch_cuda");
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(function(ordinal, &stream));
  return stream;
}

#else

void* current_stream(int) { return nullptr; }

#endif

DeviceScope::DeviceScope(const Tensor& tensor) {
  if (tensor.is_cpu() || is_current_device(tensor.get_device_index())) return;
  current_.emplace(tensor.get_device_index());
  guard_.emplace(tensor.get_device_index());
}

Tensor new_contiguous(const Tensor& like, const std::vector<int64_t>& sizes, ElementType type) {
  return torch::stable::new_empty(like, sizes, scalar_type(type));
}

Tensor new_bytes(const Tensor& like, int64_t bytes) {
  return torch::stable::new_empty(like, {bytes}, ScalarType::Byte);
}

Tensor tensor_over(const void* data, std::initializer_list<int64_t> sizes,
                   std::initializer_list<int64_t> strides, ElementType type, const Device& device) {
  using torch::headeronly::DeviceType;
  const torch::stable::Device on = device.ordinal < 0
                                       ? torch::stable::Device(DeviceType::CPU)
                                       : torch::stable::Device(DeviceType::CUDA, device.ordinal);
  return torch::stable::from_blob(const_cast<void*>(data), sizes, strides, on, scalar_type(type));
}

ElementType element_type(const Tensor& tensor) {
  const auto* const found =
      std::find(kScalarTypes.begin(), kScalarTypes.end(), tensor.scalar_type());
  return static_cast<ElementType>(found - kScalarTypes.begin());
}

Tensor text_tensor(const std::string& text) {
  Tensor tensor = torch::stable::empty({static_cast<int64_t>(text.size())}, ScalarType::Byte,
                                       std::nullopt, torch::headeronly::DeviceType::CPU);
  std::memcpy(tensor.data_ptr(), text.data(), text.size());
  return tensor;
}

}  // namespace sparse_autotune
