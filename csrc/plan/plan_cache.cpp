#include "plan/plan_cache.h"

#include <cstdint>
#include <list>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

namespace sparse_autotune {
namespace {

// More than a model has layers, experts among them: a pattern that comes again without its plan
// costs a look at its indices, for which a GPU has to be waited for.
constexpr size_t kMaxPlans = 1 << 14;
constexpr int64_t kDefaultByteBound = int64_t{1} << 30;

// Where crow_indices and col_indices lie. Several patterns may: shapes and dtypes tell them apart.
using Addresses = std::pair<const void*, const void*>;
struct AddressesHash {
  size_t operator()(const Addresses& at) const {
    const auto crow = reinterpret_cast<uintptr_t>(at.first);
    const auto col = reinterpret_cast<uintptr_t>(at.second);
    return static_cast<size_t>(((crow * 0x9e3779b97f4a7c15u) ^ col) * 0x9e3779b97f4a7c15u >> 7);
  }
};
Addresses addresses_of(const PatternKey& key) { return {key.crow_indices, key.col_indices}; }

}  // namespace

struct PlanCache::State {
  using Order = std::list<std::shared_ptr<Plan>>;  // most recently used first
  std::mutex mutex;
  Order order;
  using Plans = std::unordered_multimap<Addresses, Order::iterator, AddressesHash>;
  Plans plans;
  std::unordered_map<Addresses, int64_t, AddressesHash> owners;
  int64_t byte_bound = kDefaultByteBound;
  int64_t index_bytes = 0;  // of all plans

  int64_t bytes() const { return index_bytes + Plan::all_derived_bytes(); }

  Plans::iterator find(const PatternKey& key) {
    auto [it, end] = plans.equal_range(addresses_of(key));
    while (it != end && !((*it->second)->key() == key)) ++it;
    return it == end ? plans.end() : it;
  }

  // What was removed, to be destroyed by the caller after the lock is given up.
  std::shared_ptr<Plan> remove(Plans::iterator it) {
    std::shared_ptr<Plan> plan = *it->second;
    order.erase(it->second);
    plans.erase(it);
    index_bytes -= plan->index_bytes();
    return plan;
  }

  // Adds to what was removed already, which counts until it is destroyed.
  void shrink(std::vector<std::shared_ptr<Plan>>* removed) {
    int64_t left = bytes();
    for (const auto& plan : *removed) left -= plan->derived_bytes();
    while (order.size() > 1 && (order.size() > kMaxPlans || left > byte_bound)) {
      removed->push_back(remove(find(order.back()->key())));
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
  const auto it = state_->find(key);
  if (it == state_->plans.end()) return nullptr;
  if (it->second != state_->order.begin()) {
    state_->order.splice(state_->order.begin(), state_->order, it->second);
  }
  return *it->second;
}

void PlanCache::insert(std::shared_ptr<Plan> plan) {
  std::vector<std::shared_ptr<Plan>> removed;
  const std::lock_guard<std::mutex> lock(state_->mutex);
  const auto there = state_->find(plan->key());
  if (there != state_->plans.end()) removed.push_back(state_->remove(there));
  state_->index_bytes += plan->index_bytes();
  state_->order.push_front(plan);
  state_->plans.emplace(addresses_of(plan->key()), state_->order.begin());
  state_->shrink(&removed);
}

void PlanCache::drop(const void* crow_indices, const void* col_indices) {
  std::vector<std::shared_ptr<Plan>> removed;
  const std::lock_guard<std::mutex> lock(state_->mutex);
  auto [it, end] = state_->plans.equal_range({crow_indices, col_indices});
  while (it != end) removed.push_back(state_->remove(it++));
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
  return state_->owners.count(addresses_of(key)) != 0;
}

void PlanCache::drop_copies(const void* crow_indices, const void* col_indices, const void* values) {
  std::vector<std::shared_ptr<Plan>> plans;
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    const auto [begin, end] = state_->plans.equal_range({crow_indices, col_indices});
    for (auto it = begin; it != end; ++it) plans.push_back(*it->second);
  }
  for (const auto& plan : plans) plan->drop_copies(values);
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
