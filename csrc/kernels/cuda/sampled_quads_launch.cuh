// The kernels of sampled_quads_sm90 by dtype and layouts.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cuda/device/sampled_quads.cuh"
#include "kernels/cuda/sampled_codes.h"

namespace sparse_autotune {

template <typename T, bool kTermsC, bool kTermsB>
constinit KernelCode<WaveArguments> quads_code{&sampled_quads_kernel<T, kTermsC, kTermsB>, true};

using QuadCodes = SampledCodes<WaveArguments>;

template <typename T>
constexpr QuadCodes quad_codes() {
  return {{{&quads_code<T, true, true>, &quads_code<T, true, false>},
           {&quads_code<T, false, true>, &quads_code<T, false, false>}}};
}

// In a file of their own, so that none compiles for long.
QuadCodes quad_bf16_codes();

}  // namespace sparse_autotune
