#include "c_api/handles.h"

#include <algorithm>
#include <cstdlib>

#include "plan/memory_pool.h"

namespace sparse_autotune {

#ifndef SPARSE_AUTOTUNE_WITH_CUDA
Status copy_to_device(void*, const void*, int64_t, void*) {
  return Status::failed(StatusCode::kLaunchFailed, "this build has no CUDA");
}
#endif

CCaller::~CCaller() {
  for (void* const memory : allocated_) {
    if (context_.ordinal() < 0) {
      std::free(memory);
    } else {
      pool_free(memory, stream_);
    }
  }
}

void* CCaller::allocate(int64_t bytes) {
  allocated_.reserve(allocated_.size() + 1);
  void* memory = nullptr;
  if (context_.ordinal() < 0) {
    memory = std::malloc(static_cast<size_t>(std::max<int64_t>(bytes, 1)));
    if (memory == nullptr) {
      refuse("no host memory for " + std::to_string(bytes) + " bytes", Fault::kMemory);
    }
  } else {
    // In a graph that is being captured this becomes a node: the graph owns the memory.
    const Status status = pool_require(context_.ordinal(), bytes, stream_, &memory);
    if (!status) refuse(status.message(), Fault::kMemory);
  }
  allocated_.push_back(memory);
  return memory;
}

}  // namespace sparse_autotune
