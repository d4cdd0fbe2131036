// The kernels of sampled_sm90 for strips of 64 rows.
#include "kernels/cuda/sampled_launch.cuh"

namespace sparse_autotune {

SampledShape strip64_shape() {
  return sampled_shape<Strip64>({{1.02, 0.64, 1.02}, {0.90, 0.55, 0.90}, 2.0});
}

}  // namespace sparse_autotune
