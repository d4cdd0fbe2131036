#include "plan/current_device.h"

#include <cuda_runtime_api.h>

#include "kernels/cuda/host/captured_graph.h"
#include "plan/capture_mode.h"

namespace sparse_autotune {

bool is_current_device(int ordinal) {
  int current = -1;
  return cudaGetDevice(&current) == cudaSuccess && current == ordinal;
}

bool capturing(void* stream) { return is_capturing(static_cast<cudaStream_t>(stream)); }

bool still_works(void* stream) {
  if (stream == nullptr) return true;
  static_cast<void>(cudaGetLastError());
  return cudaStreamSynchronize(static_cast<cudaStream_t>(stream)) == cudaSuccess;
}

CurrentDevice::CurrentDevice(int ordinal) {
  int current = -1;
  if (ordinal < 0 || cudaGetDevice(&current) != cudaSuccess || current == ordinal) return;
  if (cudaSetDevice(ordinal) == cudaSuccess) previous_ = current;
}

CurrentDevice::~CurrentDevice() {
  if (previous_ >= 0) cudaSetDevice(previous_);
}

}  // namespace sparse_autotune
