#include "ops/cpu_scratch.h"

#include <cstdlib>
#include <memory>

#include "variant.h"

namespace sparse_autotune {
namespace {

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

}  // namespace

void* cpu_scratch(int64_t bytes) {
  thread_local std::unique_ptr<void, Free> memory;
  thread_local int64_t size = 0;
  if (bytes > size) {
    size = ceil_div(bytes, kScratchAlignment) * kScratchAlignment;
    memory.reset();
    memory.reset(std::aligned_alloc(kScratchAlignment, static_cast<size_t>(size)));
    if (memory == nullptr) size = 0;
  }
  return memory.get();
}

}  // namespace sparse_autotune
