#include "kernels/cuda/host/cuda_status.h"

#include <string>

namespace sparse_autotune {

Status to_status(cudaError_t error, std::string_view what) {
  if (error == cudaSuccess) return Status::ok();
  static_cast<void>(cudaGetLastError());
  const StatusCode code =
      error == cudaErrorMemoryAllocation ? StatusCode::kOutOfMemory : StatusCode::kLaunchFailed;
  return Status::failed(code, std::string(what) + ": " + cudaGetErrorString(error) + " (" +
                                  cudaGetErrorName(error) + ")");
}

}  // namespace sparse_autotune
