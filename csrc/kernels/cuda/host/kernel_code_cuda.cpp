#include "kernels/cuda/host/kernel_code.h"

#include <atomic>
#include <string>

#include "kernels/cuda/host/cuda_status.h"

namespace sparse_autotune {

Status LaunchedCode::ready(const void* kernel, int ordinal) {
  if (ordinal < 0 || ordinal >= kMaxDevices) {
    return Status::failed(StatusCode::kLaunchFailed, "no CUDA device " + std::to_string(ordinal));
  }
  const std::atomic_ref<bool> known(ready_[ordinal]);
  if (known.load(std::memory_order_acquire)) return Status::ok();
  int current = 0;
  const cudaError_t error = cudaGetDevice(&current);
  if (error != cudaSuccess) return to_status(error, "cudaGetDevice");
  Status status = prepare(kernel, ordinal);
  static_cast<void>(cudaSetDevice(current));
  if (status) known.store(true, std::memory_order_release);
  return status;
}

Support LaunchedCode::runs_on(const void* kernel, const Device& d, int64_t shared) {
  if (shared > d.shared_memory_per_block) {
    return Support::no("needs " + std::to_string(shared) +
                       " bytes of shared memory, the device has " +
                       std::to_string(d.shared_memory_per_block));
  }
  if (d.ordinal < 0) return Support::yes();  // a description, not a device to ask
  const Status status = ready(kernel, d.ordinal);
  return status ? Support::yes() : Support::no(status.message());
}

Status LaunchedCode::launch(const void* kernel, void* argument, dim3 blocks, int threads,
                            int64_t shared, void* stream, std::string_view name, unsigned cluster) {
  int ordinal = 0;
  const cudaError_t error = cudaGetDevice(&ordinal);
  if (error != cudaSuccess) return to_status(error, name);
  Status status = ready(kernel, ordinal);
  if (!status) return status;
  void* pointers[] = {argument};
  cudaLaunchAttribute attributes[2] = {};
  unsigned count = 0;
  if (overlaps_) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count++].val.clusterDim = {cluster, 1, 1};
  }
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<size_t>(shared);
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = attributes;
  config.numAttrs = count;
  return to_status(cudaLaunchKernelExC(&config, kernel, pointers), name);
}

Status LaunchedCode::prepare(const void* kernel, int ordinal) const {
  int shared = 0;
  cudaFuncAttributes found;
  cudaError_t error = cudaSetDevice(ordinal);
  if (error == cudaSuccess) error = cudaFuncGetAttributes(&found, kernel);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, ordinal);
  }
  if (error == cudaSuccess) {
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 shared - static_cast<int>(found.sharedSizeBytes));
  }
  if (error == cudaSuccess) {
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, carveout_);
  }
  return to_status(error, "this build's code for the device");
}

}  // namespace sparse_autotune
