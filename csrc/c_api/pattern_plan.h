// The plan of a pattern's handle, which outlives forks.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "plan/plan.h"

namespace sparse_autotune {

// A forked child gets a plan of its own: the parent's may be locked, or half changed, by a thread
// that the child does not have. That one stays behind and is never freed.
class PatternPlan {
 public:
  PatternPlan() = default;
  ~PatternPlan();
  PatternPlan(const PatternPlan&) = delete;
  PatternPlan& operator=(const PatternPlan&) = delete;

  void set(std::shared_ptr<Plan> plan);
  const std::shared_ptr<Plan>& get() const {
    if (fork_.load(std::memory_order_acquire) != forks()) renew();
    return plan_;
  }

 private:
  // How many lie between this process and the first one.
  static uint64_t forks();
  void renew() const;

  mutable std::shared_ptr<Plan> plan_;
  mutable std::atomic<uint64_t> fork_{0};  // that the plan was made after
};

}  // namespace sparse_autotune
