#include <cuda_runtime_api.h>

#include "calls/write_without_blocks.h"
#include "kernels/cuda/host/apply_epilogue.h"
#include "kernels/cuda/host/cuda_status.h"

namespace sparse_autotune::detail {

Status clear_lines_cuda(void* first, int64_t pitch, int64_t length, int64_t lines, void* stream) {
  // A pitch beyond what the driver copies: one line at a time.
  constexpr int64_t kMaxPitch = int64_t{1} << 31;
  const auto on = static_cast<cudaStream_t>(stream);
  if (lines == 1 || pitch == length) {
    return to_status(cudaMemsetAsync(first, 0, static_cast<size_t>(length * lines), on),
                     "clearing a result");
  }
  if (pitch < kMaxPitch) {
    return to_status(cudaMemset2DAsync(first, static_cast<size_t>(pitch), 0,
                                       static_cast<size_t>(length), static_cast<size_t>(lines), on),
                     "clearing a result");
  }
  for (int64_t line = 0; line < lines; ++line) {
    Status status =
        clear_lines_cuda(static_cast<char*>(first) + line * pitch, length, length, 1, stream);
    if (!status) return status;
  }
  return Status::ok();
}

Status apply_epilogue_to_cuda(const Problem& problem, const Launch& launch) {
  return apply_epilogue(problem, launch);
}

}  // namespace sparse_autotune::detail
