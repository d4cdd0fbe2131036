// A kernel that uses up to all of a multiprocessor's shared memory, and the devices it is ready on.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/cuda/cuda_status.h"
#include "variant.h"

namespace sparse_autotune {

// `Arguments` is the kernel's one parameter. Thread-safe.
template <typename Arguments>
class KernelCode {
 public:
  constexpr explicit KernelCode(void (*kernel)(Arguments)) : kernel_(kernel) {}

  // Whether this binary holds code for the device. Asks and opts in to its shared memory the first
  // time, afterwards one load.
  Status ready(int ordinal) {
    if (ordinal < 0 || ordinal >= kMaxDevices) {
      return Status::failed(StatusCode::kLaunchFailed, "no CUDA device " + std::to_string(ordinal));
    }
    if (ready_[ordinal].load(std::memory_order_acquire)) return Status::ok();
    int current = 0;
    const cudaError_t error = cudaGetDevice(&current);
    if (error != cudaSuccess) return to_status(error, "cudaGetDevice");
    const Status status = prepare(ordinal);
    static_cast<void>(cudaSetDevice(current));
    if (status) ready_[ordinal].store(true, std::memory_order_release);
    return status;
  }

  // On the current device. `name` is the variant's, for the error's text.
  Status launch(Arguments args, unsigned blocks, int threads, int64_t shared, void* stream,
                std::string_view name) {
    int ordinal = 0;
    const cudaError_t error = cudaGetDevice(&ordinal);
    if (error != cudaSuccess) return to_status(error, name);
    const Status status = ready(ordinal);
    if (!status) return status;
    void* pointers[] = {&args};
    return to_status(
        cudaLaunchKernel(address(), dim3(blocks), dim3(threads), pointers,
                         static_cast<size_t>(shared), static_cast<cudaStream_t>(stream)),
        name);
  }

 private:
  static constexpr int kMaxDevices = 64;

  const void* address() const { return reinterpret_cast<const void*>(kernel_); }

  Status prepare(int ordinal) const {
    int shared = 0;
    cudaFuncAttributes found;
    cudaError_t error = cudaSetDevice(ordinal);
    if (error == cudaSuccess) error = cudaFuncGetAttributes(&found, address());
    if (error == cudaSuccess) {
      error = cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, ordinal);
    }
    if (error == cudaSuccess) {
      error = cudaFuncSetAttribute(address(), cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   shared - static_cast<int>(found.sharedSizeBytes));
    }
    if (error == cudaSuccess) {
      error = cudaFuncSetAttribute(address(), cudaFuncAttributePreferredSharedMemoryCarveout,
                                   cudaSharedmemCarveoutMaxShared);
    }
    return to_status(error, "this build's code for the device");
  }

  void (*kernel_)(Arguments);
  std::atomic<bool> ready_[kMaxDevices] = {};
};

}  // namespace sparse_autotune
