#include "kernels/cuda/host/tensor_map.h"

#include <cuda_runtime_api.h>

#include <string>

#include "kernels/cuda/host/cuda_status.h"

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

constexpr int64_t kLineBytes = 128;  // of a swizzled box

// Lines `ld` apart, in as many matrices as the batch has different ones.
BoxedTensor matrices(const Problem& p, const void* data, int64_t length, int64_t lines, int64_t ld,
                     int64_t stride, uint32_t along, uint32_t across) {
  return {data,         p.dtype,           3, {length, lines, stride != 0 ? p.batch : 1},
          {ld, stride}, {along, across, 1}};
}

}  // namespace

BoxedTensor tensor_of_b(const Problem& p, const void* b, uint32_t along, uint32_t across) {
  const bool rows = p.b_layout == Layout::kRowMajor;
  return matrices(p, b, rows ? p.n : p.k, rows ? p.k : p.n, p.ldb, p.b_batch_stride, along, across);
}

BoxedTensor tensor_of_c(const Problem& p, const void* c, uint32_t along, uint32_t across) {
  const bool rows = p.c_layout == Layout::kRowMajor;
  return matrices(p, c, rows ? p.n : p.m, rows ? p.m : p.n, p.ldc, p.c_batch_stride, along, across);
}

BoxedTensor in_columns_of_64(const BoxedTensor& t, uint32_t along) {
  return {t.data,
          t.dtype,
          4,
          {64, t.sizes[1], t.sizes[0] / 64, t.sizes[2]},
          {t.strides[0], 64, t.strides[1]},
          {64, t.box[1], along / 64, 1}};
}

BoxedTensor tensor_of_values(const Problem& p, const void* values, uint32_t rows) {
  if (!p.transpose) {
    const auto line = static_cast<uint32_t>(kLineBytes / size_of(p.dtype));
    return {values, p.dtype, 2, {p.block_k, p.nnzb * p.block_m}, {p.block_k}, {line, rows}};
  }
  return {values,
          p.dtype,
          3,
          {64, p.nnzb * p.block_k, p.block_m / 64},
          {p.block_m, 64},
          {64, 64, rows / 64}};
}

Status make_tensor_map(const BoxedTensor& t, CUtensorMap* map) {
  static const Found found;
  if (!found.status) return found.status;
  cuuint64_t sizes[4], strides[3];
  cuuint32_t box[4], every[4] = {1, 1, 1, 1};
  for (uint32_t i = 0; i < t.rank; ++i) {
    sizes[i] = static_cast<cuuint64_t>(t.sizes[i]);
    box[i] = t.box[i];
    if (i == 0) continue;
    // One that is never used must be one that TMA takes, too.
    const int64_t stride = t.sizes[i] > 1 ? t.strides[i - 1] : t.strides[0];
    strides[i - 1] = static_cast<cuuint64_t>(stride * size_of(t.dtype));
  }
  constexpr CUtensorMapDataType kTypes[] = {
      CU_TENSOR_MAP_DATA_TYPE_FLOAT16, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
      CU_TENSOR_MAP_DATA_TYPE_FLOAT32, CU_TENSOR_MAP_DATA_TYPE_FLOAT64};  // as DType has them
  // Lines shorter than what is swizzled would lie apart.
  const auto wide =
      t.box[0] * size_of(t.dtype) == 64 ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B;
  const auto swizzle = t.plain ? CU_TENSOR_MAP_SWIZZLE_NONE : wide;
  const CUresult result =
      found.encode(map, kTypes[static_cast<int>(t.dtype)], t.rank, const_cast<void*>(t.data), sizes,
                   strides, box, every, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                   CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result == CUDA_SUCCESS) return Status::ok();
  return Status::failed(
      StatusCode::kLaunchFailed,
      "cuTensorMapEncodeTiled refused a tensor: error " + std::to_string(static_cast<int>(result)));
}

}  // namespace sparse_autotune
