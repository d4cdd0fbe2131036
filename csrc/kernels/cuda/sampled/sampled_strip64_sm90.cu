// sampled_sm90 for strips of 64 rows: what the host knows, and the kernels for fp16.
#include "kernels/cuda/sampled/sampled_launch.cuh"

namespace sparse_autotune {

SampledShape strip64_shape() {
  return sampled_shape<Strip64>({{1.02, 0.64, 1.02}, {0.90, 0.55, 0.90}, 2.0},
                                {sampled_codes<__half, Strip64>(), strip64_bf16_codes()});
}

}  // namespace sparse_autotune
