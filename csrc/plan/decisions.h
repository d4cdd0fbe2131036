// Which variant serves exactly which call: the memory of what was decided.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "plan/validity.h"
#include "variant.h"

namespace sparse_autotune {

// What decisions depend on besides the problem: settings and, on a CPU, threads.
inline uint64_t decision_generation(uint64_t settings_generation, int threads) {
  return settings_generation * 4096 + static_cast<uint64_t>(threads);
}

namespace detail {

// How many decisions one place may remember now, and those of all places in the process.
int64_t most_decisions();
void count_decisions(int64_t more);
void forget_decision_count();

struct ProblemHash {
  using is_transparent = void;
  size_t operator()(AnyProblem problem) const { return problem.hash(); }
  size_t operator()(const OwnedProblem& problem) const { return problem.view().hash(); }
};
struct SameProblem {
  using is_transparent = void;
  static AnyProblem view(AnyProblem problem) { return problem; }
  static AnyProblem view(const OwnedProblem& problem) { return problem.view(); }
  template <typename A, typename B>
  bool operator()(const A& a, const B& b) const {
    return view(a) == view(b);
  }
};

}  // namespace detail

// `Decision` has a Validity `validity`, after whose end it is not found. From many threads.
template <typename Decision>
class Decisions {
 public:
  Decisions() = default;
  ~Decisions() { detail::count_decisions(-count_); }
  Decisions(const Decisions&) = delete;
  Decisions& operator=(const Decisions&) = delete;

  // `generation` is that of settings, devices and threads: a decision of another one is forgotten.
  // `selector` is the variant or family that the call is limited to; empty: it is not.
  std::optional<Decision> find(AnyProblem problem, uint64_t generation, std::string_view selector) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (generation != generation_) return std::nullopt;
    const auto of_selector = known_.find(selector);
    if (of_selector == known_.end()) return std::nullopt;
    const auto it = of_selector->second.find(problem);
    if (it == of_selector->second.end() || !it->second.validity.holds()) return std::nullopt;
    return it->second;
  }

  void remember(AnyProblem problem, uint64_t generation, std::string_view selector,
                const Decision& decision) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (generation != generation_ || count_ >= detail::most_decisions()) {
      detail::count_decisions(-count_);
      count_ = 0;
      known_ = {};  // with the room that so many took
    }
    generation_ = generation;
    if (known_[std::string(selector)].insert_or_assign(OwnedProblem(problem), decision).second) {
      ++count_;
      detail::count_decisions(1);
    }
  }

 private:
  using Known =
      std::unordered_map<OwnedProblem, Decision, detail::ProblemHash, detail::SameProblem>;
  std::mutex mutex_;
  uint64_t generation_ = 0;
  std::map<std::string, Known, std::less<>> known_;  // by selector
  int64_t count_ = 0;                                // of all of them
};

}  // namespace sparse_autotune
