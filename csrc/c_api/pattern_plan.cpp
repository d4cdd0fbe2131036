#include "c_api/pattern_plan.h"

#include <pthread.h>

#include <mutex>
#include <utility>

#include "autotune/held_by_fork.h"

namespace sparse_autotune {
namespace {

std::atomic<uint64_t> fork_count{0};
[[maybe_unused]] const int counted = pthread_atfork(nullptr, nullptr, [] { ++fork_count; });

std::mutex& renewal_mutex() {
  static auto* const mutex = new std::mutex;
  return *mutex;
}
[[maybe_unused]] const int held = held_by_fork<renewal_mutex>();

void leave_behind(std::shared_ptr<Plan> plan) {
  static_cast<void>(new std::shared_ptr<Plan>(std::move(plan)));
}

}  // namespace

uint64_t PatternPlan::forks() { return fork_count.load(std::memory_order_relaxed); }

void PatternPlan::set(std::shared_ptr<Plan> plan) {
  plan_ = std::move(plan);
  fork_.store(forks(), std::memory_order_release);
}

void PatternPlan::renew() const {
  const std::lock_guard<std::mutex> lock(renewal_mutex());
  if (fork_.load(std::memory_order_relaxed) == forks()) return;
  auto made = plan_->anew();
  leave_behind(std::exchange(plan_, std::move(made)));
  fork_.store(forks(), std::memory_order_release);
}

PatternPlan::~PatternPlan() {
  if (fork_.load(std::memory_order_relaxed) != forks()) leave_behind(std::move(plan_));
}

}  // namespace sparse_autotune
