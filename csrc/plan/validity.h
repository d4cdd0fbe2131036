// How long what was decided stands.
#pragma once

#include <atomic>
#include <cstdint>

namespace sparse_autotune {

// Until its source changes: `changes` counts how often that has been, and is never destroyed.
class Validity {
 public:
  Validity() = default;  // forever
  explicit Validity(const std::atomic<uint64_t>& changes)
      : changes_(&changes), seen_(changes.load(std::memory_order_acquire)) {}

  bool holds() const {
    return changes_ == nullptr || changes_->load(std::memory_order_acquire) == seen_;
  }

 private:
  const std::atomic<uint64_t>* changes_ = nullptr;
  uint64_t seen_ = 0;
};

}  // namespace sparse_autotune
