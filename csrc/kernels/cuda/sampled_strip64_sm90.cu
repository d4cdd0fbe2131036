// The kernels of sampled_sm90 for strips of 64 rows.
#include "kernels/cuda/sampled_launch.cuh"

namespace sparse_autotune {

SampledShape strip64_shape() { return sampled_shape<Strip64>({{1.00, 0.66}, {0.60, 0.45}, 3.0}); }

}  // namespace sparse_autotune
