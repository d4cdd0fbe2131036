// What a launch that is being captured owes to its CUDA graph: the graph may be replayed long after
// the call, so what its nodes use must last as long as it.
#pragma once

#include <cuda_runtime_api.h>

#include <string_view>

#include "variant.h"

namespace sparse_autotune {

inline bool is_capturing(cudaStream_t stream) {
  if (stream == nullptr) return false;  // the default stream never is
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  return cudaStreamIsCapturing(stream, &status) == cudaSuccess &&
         status != cudaStreamCaptureStatusNone;
}

// Calls destroy(data) once the graph that `stream` is captured into is gone, with all that was
// instantiated from it; at once where that cannot be arranged. It is called inside CUDA, where no
// call of CUDA is allowed. `what` names the purpose in the message of a failure.
Status destroy_with_graph(cudaStream_t stream, void* data, void (*destroy)(void*),
                          std::string_view what);

}  // namespace sparse_autotune
