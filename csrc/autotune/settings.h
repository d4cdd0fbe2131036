// What a user may change at run time. Python owns names, environment variables and documentation;
// here are the values that the core reads.
#pragma once

#include <cstdint>
#include <string>

#include "exported.h"
#include "operator.h"

namespace sparse_autotune {

enum class Mode : uint8_t {
  kOn,        // a miss races and remembers
  kOff,       // the heuristic alone decides
  kReadonly,  // the cache decides, else the heuristic; never races, never writes
  kRecord,    // like kReadonly, and reports the signatures that it missed
};

enum class Timing : uint8_t { kCold, kWarm };

struct Settings {
  Mode mode = Mode::kOn;
  double budget_s = 1.0;  // of one race, seconds
  Timing timing = Timing::kCold;
  Buckets buckets = Buckets::kGeometric;
  double min_speedup = 1.02;              // who is not faster than another by that does not beat it
  int64_t plan_bytes = int64_t{1} << 30;  // what plans keep
  int64_t frozen_bytes = int64_t{8} << 30;  // copies of frozen values in a variant's own form
  int64_t tuning_bytes = int64_t{4} << 30;  // everything that one race allocates
  bool exact_nonfinite = false;             // no NaN from an absent block that meets an infinity
  std::string variant;                      // forces a variant or a family everywhere

  bool operator==(const Settings&) const = default;
};

// A copy of what is set now. From any thread.
Settings settings();
// Takes effect at the next call of an operator.
void set_settings(const Settings& settings);

// Changes with every set_settings() and outdate_decisions(): an answer of an older generation may
// be stale.
SPARSE_AUTOTUNE_API uint64_t settings_generation();
// For what every decision depends on besides settings: which variants there are.
void outdate_decisions();

// Two settings that operators ask for with every call, without the lock.
bool exact_nonfinite();
std::string forced_variant();

}  // namespace sparse_autotune
