#include "plan/kept_memory.h"

#include <cstdlib>
#include <string>
#include <utility>

namespace sparse_autotune {
namespace detail {

std::atomic<int64_t>& frozen_byte_count() {
  static std::atomic<int64_t> count{0};
  return count;
}

#ifndef SPARSE_AUTOTUNE_WITH_CUDA
std::shared_ptr<KeptMemory> make_kept_memory_cuda(const Device&, int64_t, void*,
                                                  std::shared_ptr<const void>,
                                                  std::atomic<int64_t>*, Status* status) {
  *status = Status::failed(StatusCode::kOutOfMemory, "this build has no CUDA");
  return nullptr;
}
Status wait_until_filled_cuda(void*) { return Status::ok(); }
#endif

}  // namespace detail

namespace {

class HostMemory final : public KeptMemory {
 public:
  HostMemory(void* data, int64_t bytes, std::shared_ptr<const void> owner,
             std::atomic<int64_t>* count)
      : owner_(std::move(owner)), count_(count) {
    data_ = data;
    bytes_ = bytes;
    if (count_ != nullptr) *count_ += bytes;
  }
  ~HostMemory() override {
    std::free(data_);
    if (count_ != nullptr) *count_ -= bytes_;
  }
  // A launch on the host is over when it returns.
  Status filled_by(void*) override { return Status::ok(); }
  Status ready_for(void*) override { return Status::ok(); }
  Status used_by(void*) override { return Status::ok(); }

 private:
  const std::shared_ptr<const void> owner_;
  std::atomic<int64_t>* const count_;  // null: not counted
};

std::shared_ptr<KeptMemory> make_memory(const Device& device, int64_t bytes, void* stream,
                                        std::shared_ptr<const void> owner,
                                        std::atomic<int64_t>* count, Status* status) {
  if (device.type == DeviceType::kCuda) {
    return detail::make_kept_memory_cuda(device, bytes, stream, std::move(owner), count, status);
  }
  constexpr int64_t kAlignment = 256;
  const int64_t size = ceil_div(bytes, kAlignment) * kAlignment;
  void* data = std::aligned_alloc(kAlignment, static_cast<size_t>(size));
  if (data == nullptr) {
    *status = Status::failed(StatusCode::kOutOfMemory,
                             "no host memory for " + std::to_string(bytes) + " bytes");
    return nullptr;
  }
  return std::make_shared<HostMemory>(data, bytes, std::move(owner), count);
}

}  // namespace

Status all_ready_for(void* stream, KeptMemories memories) {
  for (KeptMemory* memory : memories) {
    if (memory == nullptr) continue;
    if (Status status = memory->ready_for(stream); !status) return status;
  }
  return Status::ok();
}

Status all_used_by(void* stream, KeptMemories memories) {
  Status first = Status::ok();
  for (KeptMemory* memory : memories) {
    if (memory == nullptr) continue;
    if (Status status = memory->used_by(stream); !status && first) first = std::move(status);
  }
  return first;
}

std::shared_ptr<KeptMemory> make_frozen_copy(const Device& device, int64_t bytes, void* stream,
                                             std::shared_ptr<const void> values_owner,
                                             Status* status) {
  return make_memory(device, bytes, stream, std::move(values_owner), &detail::frozen_byte_count(),
                     status);
}

std::shared_ptr<KeptMemory> make_pattern_memory(const Device& device, int64_t bytes, void* stream,
                                                Status* status) {
  return make_memory(device, bytes, stream, nullptr, nullptr, status);
}

Status wait_until_filled(const Device& device, void* stream) {
  return device.type == DeviceType::kCuda ? detail::wait_until_filled_cuda(stream) : Status::ok();
}

int64_t frozen_bytes() { return detail::frozen_byte_count(); }

}  // namespace sparse_autotune
