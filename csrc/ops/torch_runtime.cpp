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

// torch's numbers of element types, in the order of ours.
const std::array<int32_t, 6> kDtypes = {aoti_torch_dtype_float16(), aoti_torch_dtype_bfloat16(),
                                        aoti_torch_dtype_float32(), aoti_torch_dtype_float64(),
                                        aoti_torch_dtype_int32(),   aoti_torch_dtype_int64()};

Tensor new_strided(const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides,
                   int32_t dtype, int32_t device_type, int32_t device_index) {
  AtenTensorHandle made = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(static_cast<int64_t>(sizes.size()), sizes.data(),
                                                  strides.data(), dtype, device_type, device_index,
                                                  &made));
  return Tensor(made);
}

Tensor new_beside(const Tensor& like, const std::vector<int64_t>& sizes,
                  const std::vector<int64_t>& strides, int32_t dtype) {
  int32_t device_type = 0, device_index = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(like.get(), &device_type));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_index(like.get(), &device_index));
  return new_strided(sizes, strides, dtype, device_type, device_index);
}

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
  std::vector<int64_t> strides(sizes.size());
  int64_t stride = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    strides[d] = stride;
    stride *= std::max<int64_t>(sizes[d], 1);
  }
  return new_beside(like, sizes, strides, torch_dtype(type));
}

Tensor new_bytes(const Tensor& like, int64_t bytes) {
  return new_beside(like, {bytes}, {1}, aoti_torch_dtype_uint8());
}

Tensor tensor_over(const void* data, std::initializer_list<int64_t> sizes,
                   std::initializer_list<int64_t> strides, int32_t dtype, const Device& device) {
  const bool cpu = device.type == DeviceType::kCpu;
  AtenTensorHandle made = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_create_tensor_from_blob(
      const_cast<void*>(data), static_cast<int64_t>(sizes.size()), sizes.begin(), strides.begin(),
      0, dtype, cpu ? aoti_torch_device_type_cpu() : aoti_torch_device_type_cuda(),
      cpu ? 0 : device.ordinal, &made));
  return Tensor(made);
}

int32_t torch_dtype(ElementType type) { return kDtypes.at(static_cast<size_t>(type)); }
int32_t torch_dtype(DType dtype) { return torch_dtype(static_cast<ElementType>(dtype)); }
int32_t torch_dtype(IndexType type) {
  return torch_dtype(type == IndexType::kInt64 ? ElementType::kInt64 : ElementType::kInt32);
}

ElementType element_type(const Tensor& tensor) {
  int32_t dtype = -1;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(tensor.get(), &dtype));
  return static_cast<ElementType>(std::find(kDtypes.begin(), kDtypes.end(), dtype) -
                                  kDtypes.begin());
}

Tensor text_tensor(const std::string& text) {
  Tensor tensor = new_strided({static_cast<int64_t>(text.size())}, {1}, aoti_torch_dtype_uint8(),
                              aoti_torch_device_type_cpu(), 0);
  std::memcpy(tensor.data_ptr(), text.data(), text.size());
  return tensor;
}

}  // namespace sparse_autotune
