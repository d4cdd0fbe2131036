// cpu_tiled for AVX-512 (F, BW, DQ, VL): 16 floats or 8 doubles a vector, tiles of 8 rows x 3
// vectors: 24 accumulators, 3 rows of B and one broadcast fill 28 of 32 registers.
// Half types are widened to fp32, whose sums they need anyway.
#if defined(__x86_64__)
#include "kernels/cpu/microkernels/tiled_avx512_vectors.h"

namespace sparse_autotune::cpu_tiled {

const Microkernels* avx512_kernels(DType dtype) {
  return kernels_of<Float16Lanes, Double8Lanes, Words16>(dtype);
}

}  // namespace sparse_autotune::cpu_tiled

#endif
