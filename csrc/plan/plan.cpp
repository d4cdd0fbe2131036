#include "plan/plan.h"

namespace sparse_autotune {
namespace {

std::atomic<int64_t> all_derived{0};

}  // namespace

Plan::~Plan() { all_derived -= derived_bytes_; }

int64_t Plan::all_derived_bytes() { return all_derived; }

void Plan::after_fork() {
  all_derived = 0;
  detail::forget_decision_count();
}

void Plan::derived(int64_t bytes) {
  derived_bytes_ += bytes;
  all_derived += bytes;
}

std::shared_ptr<KeptMemory> Plan::find_copy(const void* values, const Variant* variant,
                                            const Problem& problem) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto it = copies_.find(copy_key(values, variant, problem));
  return it == copies_.end() ? nullptr : it->second;
}

void Plan::remember_copy(const void* values, const Variant* variant, const Problem& problem,
                         std::shared_ptr<KeptMemory> copy) {
  const std::lock_guard<std::mutex> lock(mutex_);
  copies_[copy_key(values, variant, problem)] = std::move(copy);
}

void Plan::drop_copies(const void* values) {
  if (const auto other = transposed().plan) other->drop_copies(values);
  decltype(copies_) dropped;  // freed after the lock is given up
  const std::lock_guard<std::mutex> lock(mutex_);
  for (auto it = copies_.begin(); it != copies_.end();) {
    if (values == nullptr || std::get<0>(it->first) == values) {
      dropped.insert(copies_.extract(it++));
    } else {
      ++it;
    }
  }
}

std::shared_ptr<KeptMemory> Plan::piece(int number) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return pieces_[static_cast<size_t>(number)];
}

void Plan::remember_piece(int number, std::shared_ptr<KeptMemory> built) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (pieces_[static_cast<size_t>(number)] != nullptr) return;
  derived(built->bytes());
  pieces_[static_cast<size_t>(number)] = std::move(built);
}

std::shared_ptr<KeptMemory> Plan::tasks(const TaskShape& shape) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [of, table] : tasks_) {
    if (of == shape) return table;
  }
  return nullptr;
}

void Plan::remember_tasks(const TaskShape& shape, std::shared_ptr<KeptMemory> built) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [of, table] : tasks_) {
    if (of == shape) return;
  }
  derived(built->bytes());
  tasks_.emplace_back(shape, std::move(built));
}

Plan::Transposed Plan::transposed() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return transposed_;
}

void Plan::remember_transposed(Transposed transposed) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (transposed_.plan != nullptr) return;
  derived(transposed.memory->bytes());  // where its indices lie
  transposed_ = std::move(transposed);
}

int64_t Plan::derived_bytes() {
  const Transposed other = transposed();
  return derived_bytes_ + (other.plan == nullptr ? 0 : other.plan->derived_bytes_.load());
}

}  // namespace sparse_autotune
