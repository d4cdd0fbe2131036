#include "plan/memory_pool.h"

namespace sparse_autotune {

#ifndef SPARSE_AUTOTUNE_WITH_CUDA
PoolUse pool_use(int) { return {}; }
void set_reclaim(Reclaim) {}
#endif

}  // namespace sparse_autotune
