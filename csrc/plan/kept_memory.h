// Memory that is written once and read by many launches: a copy of frozen values in a variant's own
// form (densified, Blocked-ELL, repacked), or what was derived from a pattern (row orders, row
// groups, the transposed pattern).
#pragma once

#include <atomic>
#include <cstdint>
#include <initializer_list>
#include <memory>

#include "variant.h"

namespace sparse_autotune {

// It is freed once every stream and CUDA graph that used it is done.
class KeptMemory {
 public:
  virtual ~KeptMemory() = default;
  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  // To be called once what fills it has been enqueued, or a part of that before a failure, unless
  // the caller waits for it.
  virtual Status filled_by(void* stream) = 0;
  // To be called before each launch that reads it, with that launch's stream; after a failure
  // nothing may be launched. A CUDA graph that is being captured there shares the memory from now
  // on.
  virtual Status ready_for(void* stream) = 0;
  // To be called after that launch. After a failure the memory may be freed before it has run.
  virtual Status used_by(void* stream) = 0;

 protected:
  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

// The first failure of all of them; null stands for none.
using KeptMemories = std::initializer_list<KeptMemory*>;
Status all_ready_for(void* stream, KeptMemories memories);
Status all_used_by(void* stream, KeptMemories memories);

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
