#include <cuda_runtime_api.h>

#include "c_api/handles.h"
#include "kernels/cuda/host/cuda_status.h"

namespace sparse_autotune {

Status copy_to_device(void* to, const void* from, int64_t bytes, void* stream) {
  return to_status(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault,
                                   static_cast<cudaStream_t>(stream)),
                   "copying indices");
}

}  // namespace sparse_autotune
