// The kernels of sampled_quads_sm90 for bf16.
#include "kernels/cuda/sampled_quads_launch.cuh"

namespace sparse_autotune {

QuadCodes quad_bf16_codes() { return quad_codes<__nv_bfloat16>(); }

}  // namespace sparse_autotune
