// The kernels of sampled_even_sm90 by dtype and layouts.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cuda/device/sampled_even.cuh"
#include "kernels/cuda/sampled_codes.h"

namespace sparse_autotune {

template <typename T, bool kTermsC, bool kTermsB>
constinit KernelCode<ShareArguments> even_code{&sampled_even_kernel<T, kTermsC, kTermsB>, true};

using EvenCodes = SampledCodes<ShareArguments>;

template <typename T>
constexpr EvenCodes even_codes() {
  return {{{&even_code<T, true, true>, &even_code<T, true, false>},
           {&even_code<T, false, true>, &even_code<T, false, false>}}};
}

EvenCodes even_bf16_codes();  // in a file of their own, so that none compiles for long

}  // namespace sparse_autotune
