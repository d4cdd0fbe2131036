// The kernels of sampled_sm80 for tiles of few rows, apart so that no file compiles for long.
#include "kernels/cuda/sampled/sampled_launch_sm80.cuh"

namespace sparse_autotune {

template <typename Tile>
SampledCodesSm80 sampled_codes_sm80() {
  return make_sampled_codes_sm80<Tile>();
}

template SampledCodesSm80 sampled_codes_sm80<SampledM32N128>();
template SampledCodesSm80 sampled_codes_sm80<SampledM16N128>();

}  // namespace sparse_autotune
