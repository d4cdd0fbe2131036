// Which CUDA device is current for the CUDA runtime linked into this library, and what its streams
// are doing. A build without CUDA has no such device.
#pragma once

#include "exported.h"

namespace sparse_autotune {

SPARSE_AUTOTUNE_API bool is_current_device(int ordinal);

// Makes a device current while it lives; -1, the CPU, changes nothing.
class SPARSE_AUTOTUNE_API CurrentDevice {
 public:
  explicit CurrentDevice(int ordinal);
  ~CurrentDevice();
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  int previous_ = -1;  // -1: nothing was changed
};

// Whether work on that cudaStream_t is being captured into a CUDA graph.
SPARSE_AUTOTUNE_API bool capturing(void* stream);

// Whether `stream`, which is not being captured, can still run work: an error of a kernel may have
// broken it for good. True of a CPU's, which is null.
bool still_works(void* stream);

}  // namespace sparse_autotune
