// The kernels of sampled_sm90 for strips of 128 rows and bf16.
#include "kernels/cuda/sampled/sampled_launch.cuh"

namespace sparse_autotune {

SampledCodes<SampledArguments> strip128_bf16_codes() {
  return sampled_codes<__nv_bfloat16, Strip128>();
}

}  // namespace sparse_autotune
