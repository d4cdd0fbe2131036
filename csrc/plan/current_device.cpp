#include "plan/current_device.h"

namespace sparse_autotune {

#ifndef SPARSE_AUTOTUNE_WITH_CUDA
bool is_current_device(int) { return false; }
bool capturing(void*) { return false; }
bool still_works(void*) { return true; }
CurrentDevice::CurrentDevice(int) {}
CurrentDevice::~CurrentDevice() = default;
#endif

}  // namespace sparse_autotune
