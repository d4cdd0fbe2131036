#include "kernels/cuda/tensor_map.h"

#include <cuda_runtime_api.h>

#include <string>

#include "kernels/cuda/cuda_status.h"

namespace sparse_autotune {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

// The driver's own function: linking libcuda would keep the library from loading without a driver.
Status find_encode(Encode* encode) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  constexpr const char* kName = "cuTensorMapEncodeTiled";
#if CUDART_VERSION >= 12050
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion(kName, &found, 12000, cudaEnableDefault, &result);
#else
  const cudaError_t error = cudaGetDriverEntryPoint(kName, &found, cudaEnableDefault, &result);
#endif
  if (error != cudaSuccess) return to_status(error, kName);
  if (result != cudaDriverEntryPointSuccess || found == nullptr) {
    return Status::failed(StatusCode::kLaunchFailed,
                          "the CUDA driver has no " + std::string(kName));
  }
  *encode = reinterpret_cast<Encode>(found);
  return Status::ok();
}

struct Found {
  Encode encode = nullptr;
  Status status = find_encode(&encode);
};

}  // namespace

Status make_tensor_map(const BoxedTensor& t, CUtensorMap* map) {
  static const Found found;
  if (!found.status) return found.status;
  cuuint64_t sizes[4], strides[3];
  cuuint32_t box[4], every[4] = {1, 1, 1, 1};
  for (uint32_t i = 0; i < t.rank; ++i) {
    sizes[i] = static_cast<cuuint64_t>(t.sizes[i]);
    box[i] = t.box[i];
    if (i > 0) strides[i - 1] = static_cast<cuuint64_t>(t.strides[i - 1] * size_of(t.dtype));
  }
  const auto type = t.dtype == DType::kFloat16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                               : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  // Lines shorter than what is swizzled would lie apart.
  const auto wide =
      t.box[0] * size_of(t.dtype) == 64 ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B;
  const auto swizzle = t.plain ? CU_TENSOR_MAP_SWIZZLE_NONE : wide;
  const CUresult result =
      found.encode(map, type, t.rank, const_cast<void*>(t.data), sizes, strides, box, every,
                   CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                   CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result == CUDA_SUCCESS) return Status::ok();
  return Status::failed(
      StatusCode::kLaunchFailed,
      "cuTensorMapEncodeTiled refused a tensor: error " + std::to_string(static_cast<int>(result)));
}

}  // namespace sparse_autotune
