// What all kernels with a producer warpgroup and two consumers share: how far a step goes along k,
// and how many threads they are.
#pragma once

#include "kernels/cuda/device/tma.cuh"
#include "kernels/cuda/device/warpgroup.cuh"

namespace sparse_autotune {

constexpr int kStepK = kLineHalves;  // k of one step: a swizzled line
constexpr int kConsumers = 2, kThreads = (1 + kConsumers) * kWarpgroup;

}  // namespace sparse_autotune
