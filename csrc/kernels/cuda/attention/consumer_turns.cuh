// Consumers that take turns in handing products to the tensor cores.
#pragma once

#include "kernels/cuda/device/warpgroup_roles.cuh"

namespace sparse_autotune {

// Which of two consumers may hand products to the tensor cores.
template <bool kTakesTurns>
class Turns {
 public:
  __device__ __forceinline__ explicit Turns(int consumer) : consumer_(consumer) {
    if (consumer == 1) pass();  // the first turn is the other's
  }
  __device__ __forceinline__ void wait() const {
    if constexpr (kTakesTurns) {
      asm volatile("bar.sync %0, %1;\n" ::"r"(1 + consumer_), "n"(kConsumers * kWarpgroup)
                   : "memory");
    }
  }
  __device__ __forceinline__ void pass() const {
    if constexpr (kTakesTurns) {
      asm volatile("bar.arrive %0, %1;\n" ::"r"(2 - consumer_), "n"(kConsumers * kWarpgroup)
                   : "memory");
    }
  }
  // Takes the turn that nobody will use.
  __device__ __forceinline__ void end() const {
    if (consumer_ == 0) wait();
  }

 private:
  int consumer_;
};

}  // namespace sparse_autotune
