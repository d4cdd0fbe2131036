// Memory that is written once and read by many launches: a copy of frozen values in a variant's own
// form (densified, Blocked-ELL, repacked), or what was derived from a pattern (row orders, row
// groups, the transposed pattern).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "variant.h"

namespace sparse_autotune {

// It is freed once every stream and CUDA graph that used it is done.
class KeptMemory {
 public:
  virtual ~KeptMemory() = default;
  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  // To be called once what fills it has been enqueued, unless the caller waits for it.
  virtual void filled_by(void* stream) = 0;
  // To be called before each launch that reads it, and after that one, with that launch's stream.
  virtual void ready_for(void* stream) = 0;
  virtual void used_by(void* stream) = 0;

 protected:
  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

// Allocates without filling. `values_owner` keeps the values alive, so that no other values can
// appear at their address. Null, with the reason in `status`, when there is no memory.
std::shared_ptr<KeptMemory> make_frozen_copy(const Device& device, int64_t bytes, void* stream,
                                             std::shared_ptr<const void> values_owner,
                                             Status* status);
// For what is derived from a pattern alone: the plan cache counts it, frozen_bytes() does not.
std::shared_ptr<KeptMemory> make_pattern_memory(const Device& device, int64_t bytes, void* stream,
                                                Status* status);

// Waits until `stream` has filled such memory, so that any stream may read it.
Status wait_until_filled(const Device& device, void* stream);

// Bytes in frozen copies of this process.
int64_t frozen_bytes();

namespace detail {
std::atomic<int64_t>& frozen_byte_count();
// `count`: where the bytes are counted; null: nowhere.
std::shared_ptr<KeptMemory> make_kept_memory_cuda(const Device& device, int64_t bytes, void* stream,
                                                  std::shared_ptr<const void> values_owner,
                                                  std::atomic<int64_t>* count, Status* status);
Status wait_until_filled_cuda(void* stream);
}  // namespace detail

}  // namespace sparse_autotune
