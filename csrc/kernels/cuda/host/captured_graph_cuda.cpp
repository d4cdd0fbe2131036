#include "kernels/cuda/host/captured_graph.h"

#include "kernels/cuda/host/cuda_status.h"

namespace sparse_autotune {
namespace {

Status find_captured_graph(cudaStream_t stream, cudaGraph_t* graph) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
#if CUDART_VERSION >= 13000
  const cudaError_t error =
      cudaStreamGetCaptureInfo(stream, &status, nullptr, graph, nullptr, nullptr, nullptr);
#else
  const cudaError_t error =
      cudaStreamGetCaptureInfo_v2(stream, &status, nullptr, graph, nullptr, nullptr);
#endif
  if (error != cudaSuccess) return to_status(error, "asking for the CUDA graph being captured");
  if (status == cudaStreamCaptureStatusActive) return Status::ok();
  return Status::failed(StatusCode::kLaunchFailed,
                        "the capture of the CUDA graph was broken by an earlier call");
}

}  // namespace

Status destroy_with_graph(cudaStream_t stream, void* data, void (*destroy)(void*),
                          std::string_view what) {
  cudaGraph_t graph = nullptr;
  cudaUserObject_t object = nullptr;
  Status status = find_captured_graph(stream, &graph);
  if (status) {
    status = to_status(
        cudaUserObjectCreate(&object, data, destroy, 1, cudaUserObjectNoDestructorSync), what);
  }
  if (!status) {
    destroy(data);
    return status;
  }
  status = to_status(cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove), what);
  // The object's end is its destructor's call.
  if (!status) static_cast<void>(to_status(cudaUserObjectRelease(object, 1), what));
  return status;
}

}  // namespace sparse_autotune
