// What all kernels with a producer warpgroup and two consumers share: how far a step goes along k,
// and how many threads they are.
#pragma once

#include "kernels/cuda/device/tma.cuh"
#include "kernels/cuda/device/warpgroup.cuh"

namespace sparse_autotune {

// k of one step: a swizzled line of elements of T, as a rule halves.
template <typename T>
constexpr int kStepOf = kLineBytes / sizeof(T);
constexpr int kStepK = kLineHalves;
constexpr int kConsumers = 2, kThreads = (1 + kConsumers) * kWarpgroup;

}  // namespace sparse_autotune
