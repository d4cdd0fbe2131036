// CUDA's driver, looked up when it is needed.
#pragma once

#include <cstddef>

namespace harness {

// Of libcuda.so.1; each returns 0 where it succeeds.
struct Driver {
  using Address = unsigned long long;
  int (*init)(unsigned) = nullptr;
  int (*get_device)(int*, int) = nullptr;
  int (*retain)(void**, int) = nullptr;
  int (*set_current)(void*) = nullptr;
  int (*allocate)(Address*, size_t) = nullptr;
  int (*free)(Address) = nullptr;
  int (*to_device)(Address, const void*, size_t) = nullptr;
  int (*to_host)(void*, Address, size_t) = nullptr;
  int (*fill)(Address, unsigned char, size_t) = nullptr;
  int (*create_event)(void**, unsigned) = nullptr;
  int (*destroy_event)(void*) = nullptr;
  int (*record_event)(void*, void*) = nullptr;
  int (*wait_for_event)(void*) = nullptr;
  int (*elapsed_ms)(float*, void*, void*) = nullptr;

  // Throws std::runtime_error.
  void must(int result, const char* what) const;
};

// Throws std::runtime_error where there is none.
const Driver& driver();

// Time on the default stream.
class Stopwatch {
 public:
  Stopwatch();
  ~Stopwatch();
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;
  void start();
  double stop_us();

 private:
  void* begin_ = nullptr;
  void* end_ = nullptr;
};

}  // namespace harness
