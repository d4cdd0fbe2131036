// The kernels of sampled_sm90 for bf16.
#include "kernels/cuda/sampled/sampled_kernel.cuh"

namespace sparse_autotune {

const SampledCodes<SampledArguments>& sampled_bf16_codes() { return kSampledCodes<__nv_bfloat16>; }

}  // namespace sparse_autotune
