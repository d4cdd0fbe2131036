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

// What a GPU's driver says of it, from which follows all that cost models may know of it. L2 hands
// out kL2BytesPerClock to each multiprocessor, at most: that tells the clock.
constexpr double kL2BytesPerClock = 64;
struct GpuFacts {
  int compute_capability = 0, multiprocessors = 0;
  int64_t l2_bytes = 0, shared_memory_per_block = 0, memory_bytes = 0;
  double memory_gbps = 0, l2_gbps = 0;

  bool operator==(const GpuFacts&) const = default;
};
Device describe_gpu(const GpuFacts& facts);

// How many CUDA devices the driver shows; 0, and why, when none can be used.
int cuda_device_count(std::string* why_none);

// Versions that decide whether timings of another process still mean anything: driver, CUDA
// runtime, kernels. One "name value" a line.
std::string environment(const Device& device);

}  // namespace sparse_autotune
