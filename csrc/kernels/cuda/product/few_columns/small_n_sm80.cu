// Products with at most 128 columns, as a model decodes: the portable kernel, from Ampere on.
//
// small_n_kernel.cuh has the algorithm. Requires: fp16 or bf16; block_k a multiple of 8;
// values aligned to 16 bytes. Any layout and alignment of B and C: B is fetched in words of up to
// 16 bytes where its columns or rows allow it, else element by element. Wins: few columns, where no
// Hopper kernel applies. Bound by latencies one after another (of the row's place, its blocks'
// columns, B), then by L1, which B passes once for each strip of rows.
#include "kernels/cuda/product/few_columns/small_n_launch.cuh"

namespace sparse_autotune {
namespace {

const SmallN kM16N8K4{"small_n_sm80/m16_n8_k4", small_n_shape<SmallN16x8K4, false>()};
const SmallN kM16N8K8{"small_n_sm80/m16_n8_k8", small_n_shape<SmallN16x8K8, false>()};
const SmallN kM16N8K16{"small_n_sm80/m16_n8_k16", small_n_shape<SmallN16x8K16, false>()};
const SmallN kM32N8K4{"small_n_sm80/m32_n8_k4", small_n_shape<SmallN32x8K4, false>()};
const SmallN kM16N16K4{"small_n_sm80/m16_n16_k4", small_n_shape<SmallN16x16K4, false>()};
const SmallN kM16N16K8{"small_n_sm80/m16_n16_k8", small_n_shape<SmallN16x16K8, false>()};
const SmallN kM32N16K8{"small_n_sm80/m32_n16_k8", small_n_shape<SmallN32x16K8, false>()};
const SmallN kM16N32K8{"small_n_sm80/m16_n32_k8", small_n_shape<SmallN16x32K8, false>()};
const SmallN kM32N32K8{"small_n_sm80/m32_n32_k8", small_n_shape<SmallN32x32K8, false>()};
const SmallN kM32N64K4{"small_n_sm80/m32_n64_k4", small_n_shape<SmallN32x64K4, false>()};

}  // namespace
}  // namespace sparse_autotune
