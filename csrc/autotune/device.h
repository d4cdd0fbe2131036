// The devices of this machine, as cost models and reports see them.
#pragma once

#include <string>

#include "exported.h"
#include "variant.h"

namespace sparse_autotune {

// This machine's CPU, with `threads` threads to use. The reference stays valid.
SPARSE_AUTOTUNE_API const Device& cpu_device(int threads);

// The CUDA device of that ordinal; `unavailable` says why its variants are off. Cached: the
// reference stays valid.
SPARSE_AUTOTUNE_API const Device& cuda_device(int ordinal);

// How many CUDA devices the driver shows; 0, and why, when none can be used.
int cuda_device_count(std::string* why_none);

// Versions that decide whether timings of another process still mean anything: driver, CUDA
// runtime, kernels. One "name value" a line.
std::string environment(const Device& device);

}  // namespace sparse_autotune
