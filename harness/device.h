// Memory of the device that a product runs on. CUDA's driver is looked up when it is needed: one
// program serves machines with and without it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "sparse_autotune.h"

namespace harness {

// Throws std::runtime_error with this thread's message if `status` is no success.
void must(sparse_autotune_status status, const char* what);

class Buffer {
 public:
  virtual ~Buffer() = default;
  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  virtual void write(const void* from) = 0;
  virtual void read(void* to) const = 0;  // what is enqueued on the default stream is waited for
  virtual void fill(int byte) = 0;

 protected:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

struct ContextDeleter {
  void operator()(sparse_autotune_context* c) const { sparse_autotune_context_destroy(c); }
};
using Context = std::unique_ptr<sparse_autotune_context, ContextDeleter>;

class Device {
 public:
  Device(bool cuda, int32_t ordinal, int32_t threads);
  sparse_autotune_context* context() const { return context_.get(); }
  sparse_autotune_device_info info() const;
  bool is_cuda() const { return cuda_; }
  std::unique_ptr<Buffer> allocate(size_t bytes) const;
  // For all that is enqueued on the default stream.
  void wait() const;

 private:
  bool cuda_;
  int32_t ordinal_;
  Context context_;
};

// Whether the library finds a CUDA device that it can use.
bool cuda_is_usable();

}  // namespace harness
