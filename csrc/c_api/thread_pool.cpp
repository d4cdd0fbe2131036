#include "c_api/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <exception>
#include <thread>

namespace sparse_autotune {
namespace {

struct Task {
  Parallel::Body body;
  void* context;
  int64_t begin, end;
};

// A worker waits at a place of its own, so that one that wakes late meets no other's task.
struct Worker {
  Task task;
  std::atomic<bool> has_task{false};
};

class Pool {
 public:
  // False where another thread uses the pool. `chunk` elements a thread.
  bool run(int64_t begin, int64_t end, int64_t chunk, Parallel::Body body, void* context) {
    if (busy_.test_and_set(std::memory_order_acquire)) return false;
    const int64_t wanted = ceil_div(end - begin, chunk) - 1;
    const int64_t helpers = std::min(wanted, start(wanted));
    left_.store(static_cast<int>(helpers), std::memory_order_relaxed);
    // The front is this thread's, with what no helper could be had for.
    const int64_t own_end = end - helpers * chunk;
    for (int64_t i = 0; i < helpers; ++i) {
      Worker& worker = workers_[static_cast<size_t>(i)];
      const int64_t first = own_end + i * chunk;
      worker.task = {body, context, first, first + chunk};
      worker.has_task.store(true, std::memory_order_release);
      worker.has_task.notify_one();
    }
    body(begin, own_end, context);
    for (int left = left_.load(std::memory_order_acquire); left > 0;
         left = left_.load(std::memory_order_acquire)) {
      left_.wait(left, std::memory_order_acquire);
    }
    busy_.clear(std::memory_order_release);
    return true;
  }

 private:
  // Workers up to that number; how many there are. They end with the process.
  int64_t start(int64_t count) {
    try {
      while (started_ < count) {
        const auto at = static_cast<size_t>(started_);
        if (workers_.size() == at) workers_.emplace_back();
        std::thread([this, &worker = workers_[at]] { serve(worker); }).detach();
        ++started_;
      }
    } catch (const std::exception&) {  // the system has no more threads, or no memory
    }
    return started_;
  }

  void serve(Worker& worker) {
    while (true) {
      worker.has_task.wait(false, std::memory_order_acquire);
      const Task task = worker.task;
      worker.has_task.store(false, std::memory_order_relaxed);
      task.body(task.begin, task.end, task.context);
      if (left_.fetch_sub(1, std::memory_order_acq_rel) == 1) left_.notify_one();
    }
  }

  std::atomic_flag busy_ = ATOMIC_FLAG_INIT;
  std::atomic<int> left_{0};
  std::deque<Worker> workers_;  // which stay where they are as it grows
  int64_t started_ = 0;
};

Pool* pool = new Pool;  // never freed: its threads may be working while the process winds down

// A forked child has none of the parent's threads.
[[maybe_unused]] const int registered = pthread_atfork(nullptr, nullptr, [] { pool = new Pool; });

thread_local int threads_in_use = 1;

void run_in_pool(int64_t begin, int64_t end, int64_t grain, Parallel::Body body, void* context) {
  const int64_t chunk = std::max(grain, ceil_div(end - begin, threads_in_use));
  if (threads_in_use == 1 || chunk >= end - begin || !pool->run(begin, end, chunk, body, context)) {
    body(begin, end, context);
  }
}

}  // namespace

int usable_threads() {
  cpu_set_t usable;
  if (sched_getaffinity(0, sizeof(usable), &usable) == 0) return CPU_COUNT(&usable);
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

PoolScope::PoolScope(int threads) : before_(threads_in_use) { threads_in_use = threads; }
PoolScope::~PoolScope() { threads_in_use = before_; }

Parallel PoolScope::parallel() const {
  Parallel parallel;
  parallel.run = run_in_pool;
  parallel.threads = threads_in_use;
  return parallel;
}

}  // namespace sparse_autotune
