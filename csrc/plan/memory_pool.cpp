#include "plan/memory_pool.h"

namespace sparse_autotune {

#ifndef SPARSE_AUTOTUNE_WITH_CUDA
Status pool_require(int, int64_t, void*, void**) {
  return Status::failed(StatusCode::kOutOfMemory, "this build has no CUDA");
}
void pool_free(void*, void*) {}
PoolUse pool_use(int) { return {}; }
void set_reclaim(Reclaim) {}
#endif

}  // namespace sparse_autotune
