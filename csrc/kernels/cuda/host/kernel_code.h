// A kernel that may use up to all of a multiprocessor's shared memory, and the devices it is ready
// on.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string_view>

#include "variant.h"

namespace sparse_autotune {

// What is the same for every kernel: compiled once, not in each kernel's file.
class LaunchedCode {
 protected:
  constexpr LaunchedCode(bool overlaps, int carveout) : overlaps_(overlaps), carveout_(carveout) {}

  Status ready(const void* kernel, int ordinal);
  Support runs_on(const void* kernel, const Device& d, int64_t shared);
  Status launch(const void* kernel, void* argument, dim3 blocks, int threads, int64_t shared,
                void* stream, std::string_view name, unsigned cluster);

 private:
  static constexpr int kMaxDevices = 64;

  Status prepare(const void* kernel, int ordinal) const;

  const bool overlaps_;
  const int carveout_;
  // Through std::atomic_ref; a std::atomic would have every kernel's file read <atomic>.
  bool ready_[kMaxDevices] = {};
};

// `Arguments` is the kernel's one parameter. `overlaps`: it may start while the kernel before it on
// the stream ends, as it waits (griddepcontrol) before it touches memory. `carveout`: what share of
// a multiprocessor's L1 it would have as shared memory, percent or a cudaSharedCarveout.
// Thread-safe.
template <typename Arguments>
class KernelCode : LaunchedCode {
 public:
  constexpr explicit KernelCode(void (*kernel)(Arguments), bool overlaps = false,
                                int carveout = cudaSharedmemCarveoutMaxShared)
      : LaunchedCode(overlaps, carveout), kernel_(kernel) {}

  // Whether this binary holds code for the device. Asks and opts in to its shared memory the first
  // time, afterwards one load.
  Status ready(int ordinal) { return LaunchedCode::ready(address(), ordinal); }

  // What a variant's supports() asks last: enough shared memory, and code for the device.
  Support runs_on(const Device& d, int64_t shared) {
    return LaunchedCode::runs_on(address(), d, shared);
  }

  // On the current device. `name` is the variant's, for the error's text; `cluster`: thread blocks
  // of each, which divides `blocks`.
  Status launch(Arguments args, dim3 blocks, int threads, int64_t shared, void* stream,
                std::string_view name, unsigned cluster = 1) {
    return LaunchedCode::launch(address(), &args, blocks, threads, shared, stream, name, cluster);
  }

 private:
  const void* address() const { return reinterpret_cast<const void*>(kernel_); }

  void (*const kernel_)(Arguments);
};

}  // namespace sparse_autotune
