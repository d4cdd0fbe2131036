#include "autotune/election.h"

#include <functional>
#include <limits>

namespace sparse_autotune {
namespace {

using Time = std::function<double(const Entrant&)>;  // infinity: it cannot win

const Entrant* fastest(const Record& record, const Time& time, double min_speedup,
                       const std::string& incumbent) {
  double best = std::numeric_limits<double>::infinity();
  for (const Entrant& e : record.entrants) best = std::min(best, time(e));
  const Entrant* found = nullptr;
  for (const Entrant& e : record.entrants) {
    const double us = time(e);
    if (us == std::numeric_limits<double>::infinity() || us > min_speedup * best) continue;
    if (e.name == incumbent) return &e;
    if (found == nullptr || e.memory_bytes < found->memory_bytes) found = &e;
  }
  return found;
}

}  // namespace

void elect(const RaceOptions& options, Record* record) {
  const auto of_those = [](bool allowed, double us) {
    return allowed ? us : std::numeric_limits<double>::infinity();
  };
  const Time in_graph = [&](const Entrant& e) {
    return of_those(e.outcome == Outcome::kOk && e.captures, e.median_us);
  };
  const Time launched = [&](const Entrant& e) {
    return of_those(e.outcome == Outcome::kOk, e.eager_us());
  };
  const std::string& incumbent_in_graph =
      options.captured_incumbent.empty() ? options.incumbent : options.captured_incumbent;
  const Entrant* captured = fastest(*record, in_graph, options.min_speedup, incumbent_in_graph);
  const Entrant* eager = fastest(*record, launched, options.min_speedup, options.incumbent);
  if (eager == nullptr) return;
  if (captured != nullptr && captured->eager_us() <= kHostMatters * eager->eager_us()) {
    eager = captured;
  }
  record->winner = eager->name;
  if (captured != nullptr && captured != eager) record->captured_winner = captured->name;
}

}  // namespace sparse_autotune
