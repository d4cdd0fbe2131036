// Who wins: by the kernels' time in a CUDA graph, and with the host's part outside of one.
#include "autotune/election.h"

#include <cstdio>
#include <string>
#include <vector>

#include "fakes.h"

using namespace sparse_autotune;

namespace {

Entrant entrant(const char* name, double median_us, double host_us, bool captures = true) {
  Entrant e;
  e.name = name;
  e.outcome = Outcome::kOk;
  e.median_us = median_us;
  e.host_us = host_us;
  e.captures = captures;
  return e;
}

struct Winners {
  std::string eager, captured;
  bool operator==(const Winners&) const = default;
};

Winners winners(const std::vector<Entrant>& entrants, const RaceOptions& options = {}) {
  Record record;
  record.entrants = entrants;
  elect(options, &record);
  return {record.winner, record.captured_winner};
}

void without_the_hosts_part_there_is_one() {
  CHECK((winners({entrant("a", 20, 0), entrant("b", 10, 0)}) == Winners{"b", ""}));
  CHECK((winners({entrant("a", 200, 90), entrant("b", 100, 90)}) == Winners{"b", ""}));
  CHECK((winners({}) == Winners{}));
}

void a_slow_host_decides_outside_of_graphs() {
  const Entrant python = entrant("python", 5, 60), ours = entrant("ours", 9, 3);
  CHECK((winners({python, ours}) == Winners{"ours", "python"}));
  CHECK((winners({ours, python}) == Winners{"ours", "python"}));
  // One that takes longer on the device than the other on the host.
  CHECK((winners({python, entrant("ours", 70, 3)}) == Winners{"python", ""}));
}

void the_hosts_noise_decides_nothing() {
  CHECK((winners({entrant("a", 2.5, 3.2), entrant("b", 2.9, 3.0)}) == Winners{"a", ""}));
  CHECK((winners({entrant("a", 2.5, 3.5), entrant("b", 2.9, 3.0)}) == Winners{"b", "a"}));
}

void what_no_graph_holds_wins_outside_alone() {
  const Entrant ours = entrant("ours", 9, 3);
  CHECK((winners({entrant("python", 5, 4, false), ours}) == Winners{"python", "ours"}));
  CHECK((winners({entrant("python", 5, 4, false)}) == Winners{"python", ""}));
  CHECK((winners({entrant("python", 12, 11, false), ours}) == Winners{"ours", ""}));
}

void only_who_was_timed_to_the_end_wins() {
  for (const Outcome outcome : {Outcome::kEliminated, Outcome::kWrongResult, Outcome::kSkipped}) {
    Entrant fast = entrant("fast", 1, 1);
    fast.outcome = outcome;
    CHECK((winners({fast, entrant("b", 10, 20)}) == Winners{"b", ""}));
  }
}

void each_has_its_incumbent() {
  const std::vector<Entrant> entrants = {entrant("a", 5, 60), entrant("b", 5.05, 61),
                                         entrant("c", 9, 3), entrant("d", 9.1, 3)};
  CHECK((winners(entrants) == Winners{"c", "a"}));
  RaceOptions options;
  options.incumbent = "d";
  options.captured_incumbent = "b";
  CHECK((winners(entrants, options) == Winners{"d", "b"}));
  options.min_speedup = 1.001;
  CHECK((winners(entrants, options) == Winners{"c", "a"}));
}

}  // namespace

int main() {
  without_the_hosts_part_there_is_one();
  a_slow_host_decides_outside_of_graphs();
  the_hosts_noise_decides_nothing();
  what_no_graph_holds_wins_outside_alone();
  only_who_was_timed_to_the_end_wins();
  each_has_its_incumbent();
  std::puts("all passed");
}
