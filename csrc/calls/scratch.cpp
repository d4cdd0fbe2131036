#include "calls/scratch.h"

#include <cstdlib>
#include <memory>

namespace sparse_autotune {
namespace {

// What variant.h asks of a launch's workspace and prepared copy, bytes.
constexpr int64_t kAlignment = 256;
// Above what cpu_tiled and sampled_tiled pack at a time. Pages that malloc returns and maps again
// in every call cost as much as a fifth of such a product; races keep their scratch too.
constexpr int64_t kMaxKept = int64_t{32} << 20;

int64_t aligned_up(int64_t bytes) { return ceil_div(bytes, kAlignment) * kAlignment; }

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

}  // namespace

ScratchLayout::ScratchLayout(int64_t workspace, int64_t prepared)
    : prepared_at_(aligned_up(workspace)), bytes_(prepared_at_ + prepared) {}

int64_t ScratchLayout::bytes_anywhere() const { return bytes_ + kAlignment; }

void* ScratchLayout::aligned(void* anywhere) {
  const auto address = reinterpret_cast<uintptr_t>(anywhere);
  return reinterpret_cast<void*>(aligned_up(static_cast<int64_t>(address)));
}

void ScratchLayout::put(void* memory, AnyLaunch* launch) const {
  launch->workspace = memory;
  if (bytes_ > prepared_at_) launch->prepared = static_cast<char*>(memory) + prepared_at_;
}

void* cpu_scratch(int64_t bytes) {
  thread_local std::unique_ptr<void, Free> memory;
  thread_local int64_t size = 0;
  if (bytes > kMaxKept) return nullptr;
  if (bytes > size) {
    size = aligned_up(bytes);
    memory.reset();
    memory.reset(std::aligned_alloc(kAlignment, static_cast<size_t>(size)));
    if (memory == nullptr) size = 0;
  }
  return memory.get();
}

}  // namespace sparse_autotune
