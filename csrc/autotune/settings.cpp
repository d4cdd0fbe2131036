#include "autotune/settings.h"

#include <atomic>
#include <mutex>

#include "autotune/held_by_fork.h"

namespace sparse_autotune {
namespace {

struct State {
  std::mutex mutex;
  Settings settings;
};
State& state() {
  static State* const s = new State;
  return *s;
}
std::mutex& state_mutex() { return state().mutex; }
[[maybe_unused]] const int held = held_by_fork<state_mutex>();

std::atomic<uint64_t> generation{1};
std::atomic<bool> exact{false};
std::atomic<bool> forced{false};

}  // namespace

Settings settings() {
  const std::lock_guard<std::mutex> lock(state().mutex);
  return state().settings;
}

void set_settings(const Settings& settings) {
  const std::lock_guard<std::mutex> lock(state().mutex);
  state().settings = settings;
  exact = settings.exact_nonfinite;
  forced = !settings.variant.empty();
  ++generation;
}

void outdate_decisions() { ++generation; }

uint64_t settings_generation() { return generation.load(std::memory_order_acquire); }

bool exact_nonfinite() { return exact.load(std::memory_order_relaxed); }

std::string forced_variant() {
  return forced.load(std::memory_order_relaxed) ? settings().variant : std::string();
}

}  // namespace sparse_autotune
