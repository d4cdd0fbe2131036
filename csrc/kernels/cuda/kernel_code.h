// A kernel that may use up to all of a multiprocessor's shared memory, and the devices it is ready
// on.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/cuda/cuda_status.h"
#include "variant.h"

namespace sparse_autotune {

// `Arguments` is the kernel's one parameter. `overlaps`: it may start while the kernel before it on
// the stream ends, as it waits (griddepcontrol) before it touches memory. `carveout`: what share of
// a multiprocessor's L1 it would have as shared memory, percent or a cudaSharedCarveout.
// Thread-safe.
template <typename Arguments>
class KernelCode {
 public:
  constexpr explicit KernelCode(void (*kernel)(Arguments), bool overlaps = false,
                                int carveout = cudaSharedmemCarveoutMaxShared)
      : kernel_(kernel), overlaps_(overlaps), carveout_(carveout) {}

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

  // What a variant's supports() asks last: enough shared memory, and code for the device.
  Support runs_on(const Device& d, int64_t shared) {
    if (shared > d.shared_memory_per_block) {
      return Support::no("needs " + std::to_string(shared) +
                         " bytes of shared memory, the device has " +
                         std::to_string(d.shared_memory_per_block));
    }
    if (d.ordinal < 0) return Support::yes();  // a description, not a device to ask
    const Status status = ready(d.ordinal);
    return status ? Support::yes() : Support::no(status.message());
  }

  // On the current device. `name` is the variant's, for the error's text; `cluster`: thread blocks
  // of each, which divides `blocks`.
  Status launch(Arguments args, dim3 blocks, int threads, int64_t shared, void* stream,
                std::string_view name, unsigned cluster = 1) {
    int ordinal = 0;
    const cudaError_t error = cudaGetDevice(&ordinal);
    if (error != cudaSuccess) return to_status(error, name);
    const Status status = ready(ordinal);
    if (!status) return status;
    void* pointers[] = {&args};
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
    return to_status(cudaLaunchKernelExC(&config, address(), pointers), name);
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
                                   carveout_);
    }
    return to_status(error, "this build's code for the device");
  }

  void (*const kernel_)(Arguments);
  const bool overlaps_;
  const int carveout_;
  std::atomic<bool> ready_[kMaxDevices] = {};
};

}  // namespace sparse_autotune
