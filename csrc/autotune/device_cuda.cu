#include <cuda_runtime.h>

#include <mutex>
#include <vector>

#include "autotune/build_info.h"
#include "autotune/device.h"

namespace sparse_autotune {
namespace {

__global__ void probe() {}

int attribute(cudaDeviceAttr which, int ordinal) {
  int value = 0;
  return cudaDeviceGetAttribute(&value, which, ordinal) == cudaSuccess ? value : 0;
}

Device read_device(int ordinal) {
  Device d;
  d.type = DeviceType::kCuda;
  d.ordinal = ordinal;
  std::string none;
  if (cuda_device_count(&none) <= ordinal) {
    d.unavailable = none.empty() ? "there is no CUDA device " + std::to_string(ordinal) : none;
    return d;
  }
  cudaDeviceProp properties;
  if (cudaGetDeviceProperties(&properties, ordinal) != cudaSuccess) {
    cudaGetLastError();
    d.unavailable = "the CUDA driver does not describe device " + std::to_string(ordinal);
    return d;
  }
  d = describe_gpu(
      {.compute_capability = properties.major * 10 + properties.minor,
       .multiprocessors = properties.multiProcessorCount,
       .l2_bytes = properties.l2CacheSize,
       .shared_memory_per_block = static_cast<int64_t>(properties.sharedMemPerBlockOptin),
       .memory_bytes = static_cast<int64_t>(properties.totalGlobalMem),
       .memory_gbps = 2.0 * attribute(cudaDevAttrMemoryClockRate, ordinal) * 1e-6 *
                      attribute(cudaDevAttrGlobalMemoryBusWidth, ordinal) / 8,
       .l2_gbps = kL2BytesPerClock * properties.multiProcessorCount *
                  attribute(cudaDevAttrClockRate, ordinal) * 1e-6});
  d.ordinal = ordinal;
  d.name = properties.name;

  int current = 0;
  cudaGetDevice(&current);
  cudaSetDevice(ordinal);
  cudaFuncAttributes attributes;
  if (cudaFuncGetAttributes(&attributes, probe) != cudaSuccess) {
    cudaGetLastError();
    d.unavailable = d.name + " has compute capability " + std::to_string(properties.major) + "." +
                    std::to_string(properties.minor) + ", and this build holds code for " +
                    build_info().architectures + " only";
  }
  cudaSetDevice(current);
  return d;
}

}  // namespace

int cuda_device_count(std::string* why_none) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count > 0) return count;
  cudaGetLastError();
  if (why_none != nullptr) {
    int driver = 0;
    cudaDriverGetVersion(&driver);
    if (driver == 0) {
      *why_none = "no NVIDIA driver was found";
    } else if (error == cudaErrorInsufficientDriver) {
      *why_none = "the NVIDIA driver supports CUDA " + std::to_string(driver / 1000) + "." +
                  std::to_string(driver % 1000 / 10) + ", and this build needs CUDA " +
                  build_info().cuda_version;
    } else {
      *why_none = std::string("no CUDA device: ") + cudaGetErrorString(error);
    }
  }
  return 0;
}

const Device& cuda_device(int ordinal) {
  static std::mutex mutex;
  static std::vector<const Device*> known;  // never freed: launches hold references
  const std::lock_guard<std::mutex> lock(mutex);
  const auto at = static_cast<size_t>(ordinal < 0 ? 0 : ordinal);
  if (known.size() <= at) known.resize(at + 1, nullptr);
  if (known[at] == nullptr) known[at] = new Device(read_device(static_cast<int>(at)));
  return *known[at];
}

std::string environment(const Device& device) {
  std::string text = "device " + device.name + "\nkernels " + build_info().kernel_hash + "\n";
  if (device.type == DeviceType::kCuda) {
    int driver = 0;
    cudaDriverGetVersion(&driver);
    text +=
        "driver " + std::to_string(driver) + "\nruntime " + std::to_string(CUDART_VERSION) + "\n";
  }
  return text;
}

}  // namespace sparse_autotune
