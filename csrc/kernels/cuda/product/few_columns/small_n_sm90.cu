// small_n_sm80 on Hopper: the same kernel, launched while the one before it ends.
//
// Setting up a launch takes about as long as multiplying by a few columns does, so it pays that
// the thread blocks are in place, waiting, when the kernel before them is over.
#include "kernels/cuda/product/few_columns/small_n_launch.cuh"

namespace sparse_autotune {
namespace {

const SmallN kM16N8K4{"small_n_sm90/m16_n8_k4", small_n_shape<SmallN16x8K4, true>()};
const SmallN kM16N8K8{"small_n_sm90/m16_n8_k8", small_n_shape<SmallN16x8K8, true>()};
const SmallN kM16N8K16{"small_n_sm90/m16_n8_k16", small_n_shape<SmallN16x8K16, true>()};
const SmallN kM32N8K4{"small_n_sm90/m32_n8_k4", small_n_shape<SmallN32x8K4, true>()};
const SmallN kM32N8K8{"small_n_sm90/m32_n8_k8", small_n_shape<SmallN32x8K8, true>()};
const SmallN kM16N16K4{"small_n_sm90/m16_n16_k4", small_n_shape<SmallN16x16K4, true>()};
const SmallN kM16N16K8{"small_n_sm90/m16_n16_k8", small_n_shape<SmallN16x16K8, true>()};
const SmallN kM16N16K16{"small_n_sm90/m16_n16_k16", small_n_shape<SmallN16x16K16, true>()};
const SmallN kM32N16K8{"small_n_sm90/m32_n16_k8", small_n_shape<SmallN32x16K8, true>()};
const SmallN kM16N32K8{"small_n_sm90/m16_n32_k8", small_n_shape<SmallN16x32K8, true>()};
const SmallN kM32N32K8{"small_n_sm90/m32_n32_k8", small_n_shape<SmallN32x32K8, true>()};
const SmallN kM16N64K4{"small_n_sm90/m16_n64_k4", small_n_shape<SmallN16x64K4, true>()};
const SmallN kM32N64K4{"small_n_sm90/m32_n64_k4", small_n_shape<SmallN32x64K4, true>()};

}  // namespace
}  // namespace sparse_autotune
