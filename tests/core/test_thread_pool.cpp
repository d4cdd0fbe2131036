// The threads of C programs' products: all of the work is done, whatever the system refuses.
#include "c_api/thread_pool.h"

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <set>
#include <thread>

#include "checks.h"

using namespace sparse_autotune;

namespace {

std::atomic<bool> memory_is_gone{false};

// How many threads shared a loop, each element of which they visited once.
size_t threads_of_a_loop() {
  constexpr int64_t kElements = 4;
  const PoolScope pool(kElements);
  std::array<std::atomic<int>, kElements> visits{};
  std::array<std::thread::id, kElements> by;
  parallel_each(pool.parallel(), kElements, 1, [&](int64_t i) {
    ++visits[static_cast<size_t>(i)];
    by[static_cast<size_t>(i)] = std::this_thread::get_id();
  });
  for (const auto& count : visits) CHECK(count == 1);
  memory_is_gone = false;
  return std::set(by.begin(), by.end()).size();
}

}  // namespace

void* operator new(size_t size) {
  void* const memory = memory_is_gone ? nullptr : std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

int main() {
  memory_is_gone = true;
  CHECK(threads_of_a_loop() == 1);
  CHECK(threads_of_a_loop() == 4);
  memory_is_gone = true;
  CHECK(threads_of_a_loop() == 4);  // there are enough already
  std::printf("all passed\n");
}
