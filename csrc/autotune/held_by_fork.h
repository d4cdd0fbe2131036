// Locks that fork() takes, so that a child finds whole what they guard, whoever held them.
#pragma once

#include <pthread.h>

#include <mutex>

namespace sparse_autotune {

// For mutexes that are held shortly, and under which no other such mutex is taken.
template <std::mutex& (*Of)()>
int held_by_fork() {
  return pthread_atfork([] { Of().lock(); }, [] { Of().unlock(); }, [] { Of().unlock(); });
}

}  // namespace sparse_autotune
