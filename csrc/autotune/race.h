// Which of several variants is the fastest that computes the right result.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "autotune/record.h"
#include "autotune/settings.h"
#include "variant.h"

namespace sparse_autotune {

struct RaceOptions {
  double budget_s = 1.0;  // of launches; the race's operands and their reference come before
  int rounds = 0;         // timed rounds for each entrant; 0: as many as pay within the budget
  bool eliminate = true;  // drop who is far behind; false times all of them to the end
  Timing timing = Timing::kCold;
  int64_t tuning_bytes = int64_t{4} << 30;
  std::string family;                     // for the signature, when only one family races
  Buckets buckets = Buckets::kGeometric;  // for the signature
  double min_speedup = 1.02;              // medians that close count as equal
  std::string incumbent;                  // stays the winner unless beaten by more than that
  std::string captured_incumbent;         // of launches in a CUDA graph; empty: the same
  // Called before launches with the share of the race that is done, and who is under test. False
  // stops the race, which then has no winner.
  std::function<bool(double fraction, std::string_view variant)> progress;
};

// Runs `entrants` (legal ones) on operands of its own, made like `problem` and on the pattern that
// `user` points to, on the user's stream and threads. The user's other operands are not touched.
//
// Each entrant is verified, then all are timed in turn, in rounds, and elect() names the winners.
// Once the budget is spent, those who may still win are brought to three samples each, to seven
// where that is cheap.
// A failure of any kind disqualifies one entrant, unless it breaks the CUDA context. Returns a
// record without a winner, and why, when operands do not fit into `tuning_bytes` or nothing raced.
//
// The device of `problem` must be current, its stream must not be capturing, and the caller keeps
// other races off the device.
Record race(AnyProblem problem, const Device& device, const AnyLaunch& user,
            const std::vector<const AnyVariant*>& entrants, const RaceOptions& options);

}  // namespace sparse_autotune
