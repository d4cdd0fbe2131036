// The kernels of sampled_wave_sm90 for bf16.
#include "kernels/cuda/sampled_wave_launch.cuh"

namespace sparse_autotune {

WaveCodes wave_single_bf16_codes() { return wave_codes<__nv_bfloat16, WaveSingle>(); }
WaveCodes wave_pairs_bf16_codes() { return wave_codes<__nv_bfloat16, WavePairs>(); }

}  // namespace sparse_autotune
