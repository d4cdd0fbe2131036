#include "plan/plan.h"

namespace sparse_autotune {
namespace {

// A loop over ever new shapes must not grow without bound; a signature is cheap to look up again.
constexpr int64_t kMaxDecisions = 4096;
// A decision takes some 430 bytes, and thousands of experts see ever new numbers of tokens, too:
// where all plans together remember so many, each goes on with few.
constexpr int64_t kManyDecisions = 1 << 18;
constexpr int64_t kFewDecisions = 16;

std::atomic<int64_t> all_derived{0}, all_decisions{0};

}  // namespace

Plan::~Plan() {
  all_derived -= derived_bytes_;
  all_decisions -= count_;
}

int64_t Plan::all_derived_bytes() { return all_derived; }

void Plan::after_fork() { all_derived = all_decisions = 0; }

void Plan::derived(int64_t bytes) {
  derived_bytes_ += bytes;
  all_derived += bytes;
}

std::optional<Decision> Plan::find(const Problem& problem, uint64_t generation,
                                   std::string_view selector) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (generation != generation_) return std::nullopt;
  const auto decisions = decisions_.find(selector);
  if (decisions == decisions_.end()) return std::nullopt;
  const auto it = decisions->second.find(problem);
  if (it == decisions->second.end() || !it->second.validity.holds()) return std::nullopt;
  return it->second;
}

void Plan::remember(const Problem& problem, uint64_t generation, std::string_view selector,
                    const Decision& decision) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const int64_t most = all_decisions < kManyDecisions ? kMaxDecisions : kFewDecisions;
  if (generation != generation_ || count_ >= most) {
    all_decisions -= count_;
    count_ = 0;
    decisions_ = {};  // with the room that so many took
  }
  generation_ = generation;
  if (decisions_[std::string(selector)].insert_or_assign(problem, decision).second) {
    ++count_;
    ++all_decisions;
  }
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
