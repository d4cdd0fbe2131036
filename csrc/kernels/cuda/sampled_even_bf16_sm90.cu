// The kernels of sampled_even_sm90 for bf16.
#include "kernels/cuda/sampled_even_launch.cuh"

namespace sparse_autotune {

EvenCodes even_bf16_codes() { return even_codes<__nv_bfloat16>(); }

}  // namespace sparse_autotune
