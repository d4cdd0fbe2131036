#include "plan/plan_cache.h"

#include <list>
#include <map>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

namespace sparse_autotune {
namespace {

constexpr size_t kMaxPlans = 1024;
constexpr int64_t kDefaultByteBound = int64_t{1} << 30;

}  // namespace

struct PlanCache::State {
  using Order = std::list<std::shared_ptr<Plan>>;  // most recently used first
  std::mutex mutex;
  Order order;
  std::unordered_map<PatternKey, Order::iterator, PatternKeyHash> plans;
  std::map<std::pair<const void*, const void*>, int64_t> owners;
  int64_t byte_bound = kDefaultByteBound;
  int64_t index_bytes = 0;  // of all plans

  int64_t bytes() const { return index_bytes + Plan::all_derived_bytes(); }

  // What was removed, to be destroyed by the caller after the lock is given up.
  std::shared_ptr<Plan> remove(Order::iterator it) {
    std::shared_ptr<Plan> plan = *it;
    plans.erase(plan->key());
    order.erase(it);
    index_bytes -= plan->index_bytes();
    return plan;
  }

  // Adds to what was removed already, which counts until it is destroyed.
  void shrink(std::vector<std::shared_ptr<Plan>>* removed) {
    int64_t left = bytes();
    for (const auto& plan : *removed) left -= plan->derived_bytes();
    while (order.size() > 1 && (order.size() > kMaxPlans || left > byte_bound)) {
      removed->push_back(remove(std::prev(order.end())));
      left -= removed->back()->index_bytes() + removed->back()->derived_bytes();
    }
  }
};

PlanCache::PlanCache() : state_(new State) {}

PlanCache& PlanCache::instance() {
  static PlanCache cache;
  return cache;
}

std::shared_ptr<Plan> PlanCache::find(const PatternKey& key) {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  const auto it = state_->plans.find(key);
  if (it == state_->plans.end()) return nullptr;
  if (it->second != state_->order.begin()) {
    state_->order.splice(state_->order.begin(), state_->order, it->second);
  }
  return *it->second;
}

void PlanCache::insert(std::shared_ptr<Plan> plan) {
  std::vector<std::shared_ptr<Plan>> removed;
  const std::lock_guard<std::mutex> lock(state_->mutex);
  const auto there = state_->plans.find(plan->key());
  if (there != state_->plans.end()) removed.push_back(state_->remove(there->second));
  state_->index_bytes += plan->index_bytes();
  state_->order.push_front(plan);
  state_->plans[plan->key()] = state_->order.begin();
  state_->shrink(&removed);
}

void PlanCache::drop(const PatternKey& key) {
  std::shared_ptr<Plan> removed;
  const std::lock_guard<std::mutex> lock(state_->mutex);
  const auto it = state_->plans.find(key);
  if (it != state_->plans.end()) removed = state_->remove(it->second);
}

void PlanCache::drop(const void* crow_indices, const void* col_indices) {
  std::vector<std::shared_ptr<Plan>> removed;
  const std::lock_guard<std::mutex> lock(state_->mutex);
  for (auto it = state_->order.begin(); it != state_->order.end();) {
    const PatternKey& key = (*it)->key();
    const auto next = std::next(it);
    if (key.crow_indices == crow_indices && key.col_indices == col_indices) {
      removed.push_back(state_->remove(it));
    }
    it = next;
  }
}

void PlanCache::own(const void* crow_indices, const void* col_indices) {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  ++state_->owners[{crow_indices, col_indices}];
}

void PlanCache::disown(const void* crow_indices, const void* col_indices) {
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    const auto it = state_->owners.find({crow_indices, col_indices});
    if (it != state_->owners.end()) {  // unknown in a forked child
      if (--it->second > 0) return;
      state_->owners.erase(it);
    }
  }
  drop(crow_indices, col_indices);
}

bool PlanCache::lasts(const PatternKey& key) const {
  // On the host a look at the indices themselves tells.
  if (key.ordinal < 0 || !may_be_inlined(key)) return true;
  const std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->owners.count({key.crow_indices, key.col_indices}) != 0;
}

void PlanCache::drop_copies(const void* values) {
  std::vector<std::shared_ptr<Plan>> plans;
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    plans.assign(state_->order.begin(), state_->order.end());
  }
  for (const auto& plan : plans) plan->drop_copies(values);
}

void PlanCache::clear() {
  State::Order removed;
  const std::lock_guard<std::mutex> lock(state_->mutex);
  state_->plans.clear();
  state_->index_bytes = 0;
  removed.swap(state_->order);
}

PlanCache::Use PlanCache::use() const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  return {static_cast<int64_t>(state_->order.size()), state_->bytes()};
}

void PlanCache::set_byte_bound(int64_t bytes) {
  std::vector<std::shared_ptr<Plan>> removed;
  const std::lock_guard<std::mutex> lock(state_->mutex);
  state_->byte_bound = bytes;
  state_->shrink(&removed);
}

void PlanCache::after_fork() {
  // Another thread may have held the lock of a plan too, or have been changing the lists: what it
  // left stays behind, and plans are built anew.
  const int64_t byte_bound = state_->byte_bound;
  state_ = new State;
  state_->byte_bound = byte_bound;
  Plan::after_fork();
}

}  // namespace sparse_autotune
