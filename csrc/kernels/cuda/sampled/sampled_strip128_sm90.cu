// sampled_sm90 for strips of 128 rows: what the host knows, and the kernels for fp16.
#include "kernels/cuda/sampled/sampled_launch.cuh"

namespace sparse_autotune {

SampledShape strip128_shape() {
  return sampled_shape<Strip128>({{0.77, 0.46, 0.74}, {0.75, 0.40, 0.66}, 2.0},
                                 {sampled_codes<__half, Strip128>(), strip128_bf16_codes()});
}

}  // namespace sparse_autotune
