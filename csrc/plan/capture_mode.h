// What tuner and plan builder owe to threads that capture CUDA graphs.
#pragma once

#include <cuda_runtime_api.h>

namespace sparse_autotune {

// Without it, an allocation or a synchronisation on this thread would break a capture that another
// thread has under way in the default, global mode.
class RelaxedCapture {
 public:
  RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace sparse_autotune
