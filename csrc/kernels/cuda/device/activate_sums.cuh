// Costly activations of sums that a thread holds in registers: a rolled loop cannot index these,
// and unrolled it would be a hundred copies of erf and tanh.
#pragma once

#include <cstdint>

#include "kernels/activation.h"
#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/device/warpgroup.cuh"
#include "operators/product/product.h"

namespace sparse_autotune {

// One of them, out of line.
template <typename Acc>
__device__ __noinline__ Acc activate_apart(Acc x, Activation activation) {
  return activate(x, activation);
}

// By way of the thread's own words of shared memory: kRun of them, kApart bytes apart, from the
// address `own` on.
template <int kCount, int kRun, int kApart>
__device__ __forceinline__ void activate_sums(float* sum, uint32_t own, Activation activation) {
#pragma unroll
  for (int first = 0; first < kCount; first += kRun) {
#pragma unroll
    for (int i = 0; i < kRun; ++i) store_shared(own + i * kApart, sum[first + i]);
#pragma unroll 1
    for (int i = 0; i < kRun; ++i) {
      const uint32_t at = own + i * kApart;
      store_shared(at, activate(load_shared<float>(at), activation));
    }
#pragma unroll
    for (int i = 0; i < kRun; ++i) sum[first + i] = load_shared<float>(own + i * kApart);
  }
}

// A warpgroup's sums of a tile, as wgmma leaves them: adds `low` and `high`, the bias of this
// lane's two rows, and applies the activation. A costly one takes kBytes of shared memory from
// `scratch` on, after `free_scratch()`.
template <int kBytes, int kCount, typename Free>
__device__ __forceinline__ void finish_sums(float (&sum)[kCount], float low, float high,
                                            Activation activation, uint32_t scratch,
                                            const Free& free_scratch) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) sum[i] += i % 4 < 2 ? low : high;
  if (activation == Activation::kRelu) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) sum[i] = activate(sum[i], Activation::kRelu);
  } else if (activation != Activation::kNone) {
    free_scratch();
    activate_sums<kCount, kBytes / (kWarpgroup * 4), kWarpgroup * 4>(
        sum, scratch + threadIdx.x % kWarpgroup * 4, activation);
  }
}

// Costly activations of sums in registers, in a rolled loop, which cannot index these: the sums
// move past it, kAtOnce at a time.
template <int kSums, int kAtOnce, typename Acc>
__device__ __forceinline__ void activate_passing(Acc* all, Activation activation) {
#pragma unroll 1
  for (int turn = 0; turn < kSums; turn += kAtOnce) {
    Acc done[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) done[i] = activate(all[i], activation);
#pragma unroll
    for (int i = 0; i < kSums - kAtOnce; ++i) all[i] = all[i + kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) all[kSums - kAtOnce + i] = done[i];
  }
}

}  // namespace sparse_autotune
