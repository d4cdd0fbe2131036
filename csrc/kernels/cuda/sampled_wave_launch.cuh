// The kernels of sampled_wave_sm90 by tile, dtype and layouts.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cuda/device/sampled_wave.cuh"
#include "kernels/cuda/sampled_codes.h"

namespace sparse_autotune {

template <typename T, typename Tile, bool kTermsC, bool kTermsB>
constinit KernelCode<WaveArguments> wave_code{&sampled_wave_kernel<T, Tile, kTermsC, kTermsB>,
                                              true};

using WaveCodes = SampledCodes<WaveArguments>;

template <typename T, typename Tile>
constexpr WaveCodes wave_codes() {
  return {{{&wave_code<T, Tile, true, true>, &wave_code<T, Tile, true, false>},
           {&wave_code<T, Tile, false, true>, &wave_code<T, Tile, false, false>}}};
}

struct WaveSingle : WaveTile<1, 6> {};
struct WavePairs : WaveTile<2, 4> {};

// In a file of their own, so that none compiles for long.
WaveCodes wave_single_bf16_codes();
WaveCodes wave_pairs_bf16_codes();

}  // namespace sparse_autotune
