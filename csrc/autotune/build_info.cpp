#include "autotune/build_info.h"

namespace sparse_autotune {

const BuildInfo& build_info() {
  static const BuildInfo info{
      SPARSE_AUTOTUNE_VERSION,
#ifdef SPARSE_AUTOTUNE_WITH_CUDA
      true,
#else
      false,
#endif
      SPARSE_AUTOTUNE_CUDA_VERSION,
      SPARSE_AUTOTUNE_CUDA_REASON,
      SPARSE_AUTOTUNE_ARCHITECTURES,
      SPARSE_AUTOTUNE_KERNEL_HASH,
      SPARSE_AUTOTUNE_BUILT_WITH_TORCH,
      SPARSE_AUTOTUNE_COMPILER,
  };
  return info;
}

}  // namespace sparse_autotune
