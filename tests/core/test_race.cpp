// The race: who wins, who is disqualified and why, and that nothing of the user's is touched.
#include <chrono>
#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "autotune/race.h"
#include "fakes.h"

using namespace sparse_autotune;
using sparse_autotune::test::Example;
using sparse_autotune::test::Fake;

namespace {

float* element(const Launch& l, const Problem& p, int64_t i, int64_t j) {
  return static_cast<float*>(l.c) + i * p.ldc + j;
}

RaceOptions all_stay(int rounds) {
  RaceOptions options;
  options.eliminate = false;
  options.rounds = rounds;
  return options;
}

Record run(const Example& e, const std::vector<const AnyVariant*>& entrants,
           RaceOptions options = {}) {
  return race(e.problem, e.device, e.launch, entrants, options);
}

// Times are what a test expects only while the machine is not busy: attempts for half a minute.
template <typename Attempt>
bool at_last(Attempt attempt) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::seconds(30);
  do {
    if (attempt()) return true;
  } while (Clock::now() < end);
  return false;
}

void fastest_right_one_wins() {
  const Example e;
  const Fake slow("a/slow", 1, 9000), fast("b/fast", 5, 500), middle("c/middle", 2, 900);
  Record r;
  CHECK(at_last([&] {
    r = run(e, {&slow, &fast, &middle});
    return r.winner == "b/fast" && r.entrants[0].name == "b/fast" &&
           r.find("b/fast")->samples >= 7 && r.find("a/slow")->outcome == Outcome::kEliminated;
  }));
  CHECK(r.failure.empty());
  CHECK(r.entrants.size() == 3);
  CHECK(r.entrants[0].outcome == Outcome::kOk);
  CHECK(r.find("c/middle")->median_us >= 900);
  CHECK(r.find("b/fast")->median_us >= 500);
  CHECK(r.nnz_flops == 2.0 * 3 * 4 * 3 * 70);
  CHECK(r.timing == Timing::kWarm);  // a CPU's always is
}

// Most of its launches take three times as long, as beside a busy neighbour.
void a_disturbed_one_wins() {
  const Example e;
  static int launches = 0;
  const Fake steady("a/steady", 1, 900);
  const Fake disturbed("b/disturbed", 1, 600, [](const Problem&, const Launch&) {
    if (launches++ % 5 > 1) test::spin(1200);
    return Status::ok();
  });
  Record r;
  CHECK(at_last([&] {
    r = run(e, {&steady, &disturbed});
    return r.winner == "b/disturbed" && r.find("b/disturbed")->samples >= 7 &&
           r.find("b/disturbed")->median_us < 700;
  }));
}

// Those behind it are right all the same; of its kernels nobody knows how long they take.
void who_writes_to_its_operands_is_out() {
  const Example e;
  const Fake first("a/first", 1, 20), later("a/later", 2, 20);
  const Fake careless("b/careless", std::numeric_limits<double>::infinity(), 20,
                      [](const Problem&, const Launch& l) {
                        *const_cast<float*>(static_cast<const float*>(l.b)) += 1;
                        return Status::ok();
                      });
  const Record r = run(e, {&careless, &first, &later}, all_stay(3));
  CHECK(r.find("a/first")->outcome == Outcome::kOk && r.find("a/later")->outcome == Outcome::kOk);
  CHECK(r.find("b/careless")->outcome == Outcome::kWrongResult);
  CHECK(r.find("b/careless")->reason == "it wrote to its operands");
}

void nobody_is_dropped_without_elimination() {
  const Example e;
  const Fake slow("a/slow", 1, 400), fast("b/fast", 5, 20);
  const Record r = run(e, {&slow, &fast}, all_stay(4));
  for (const Entrant& entrant : r.entrants) {
    CHECK(entrant.outcome == Outcome::kOk);
    CHECK(entrant.samples == 4);
  }
}

void the_budget_bounds_a_race_without_elimination() {
  const Example e;
  const Fake fast("a/fast", 5, 20), hopeless("b/hopeless", 1e6, 20);
  RaceOptions options = all_stay(0);
  options.budget_s = 0.5;
  Record r = run(e, {&fast, &hopeless}, options);
  CHECK(r.find("a/fast")->outcome == Outcome::kOk);
  CHECK(r.find("b/hopeless")->outcome == Outcome::kSkipped);
  CHECK(hopeless.launches == 0);
  options.rounds = 2;  // so many were asked for
  r = run(e, {&fast, &hopeless}, options);
  CHECK(r.find("b/hopeless")->samples == 2);
}

void who_is_behind_is_dropped() {
  const Example e;
  const Fake fast("a/fast", 1, 400), close("b/close", 2, 430);
  const Fake behind("c/behind", 3, 530), far("d/far", 4, 730), hopeless("e/hopeless", 5, 6000);
  std::set<std::string> seen;
  CHECK(at_last([&] {
    const Record r = run(e, {&far, &behind, &close, &fast, &hopeless});
    for (const Entrant& entrant : r.entrants) {
      seen.insert(entrant.name + ": " + name_of(entrant.outcome) + " " + entrant.reason);
    }
    return seen.count("a/fast: ok ") != 0 && seen.count("b/close: ok ") != 0 &&
           seen.count("c/behind: eliminated far behind after 6 rounds") != 0 &&
           seen.count("d/far: eliminated far behind after 3 rounds") != 0 &&
           seen.count("e/hopeless: eliminated its first launch was far behind") != 0;
  }));
}

void within_the_noise_less_memory_wins() {
  const Example e;
  Fake large("a/large", 1, 1500), small("b/small", 2, 1512);
  large.scratch = 4096;
  const auto wins = [&] { return run(e, {&large, &small}, all_stay(9)).winner == "b/small"; };
  CHECK(at_last([&] { return wins() && wins(); }));
}

void within_the_noise_the_smaller_estimate_wins() {
  const Example e;
  const Fake first("b/first", 1, 1512), second("a/second", 2, 1500), slower("c/slower", 0.5, 1650);
  const auto wins = [&] {
    return run(e, {&second, &first, &slower}, all_stay(9)).winner == "b/first";
  };
  CHECK(at_last([&] { return wins() && wins(); }));
}

// Others' code has no estimate, and may be compiled by its first launch.
void a_first_launch_that_compiles_costs_nothing() {
  const Example e;
  int compiled = 0;
  const auto compiles = [&](const Problem&, const Launch&) {
    if (++compiled == 1) test::spin(400e3);
    return Status::ok();
  };
  const Fake slow("a/slow", 1, 2000);
  RaceOptions options;
  options.budget_s = 0.2;
  CHECK(at_last([&] {
    compiled = 0;
    const double nobody_knows = std::numeric_limits<double>::infinity();
    const Fake first("b/first", nobody_knows, 20, compiles), second("c/second", nobody_knows, 900);
    const Record r = run(e, {&slow, &first, &second}, options);
    return r.winner == "b/first" && r.find("b/first")->samples >= 7 &&
           r.find("c/second")->samples >= 1;
  }));
}

void the_incumbent_stays_unless_beaten() {
  const Example e;
  const Fake fast("a/fast", 1, 20), slow("b/slow", 2, 4000);
  RaceOptions options;
  options.incumbent = "b/slow";
  const auto winner = [&] { return run(e, {&fast, &slow}, options).winner; };
  options.min_speedup = 1e9;  // nor is it dropped for being behind
  CHECK(winner() == "b/slow");
  options.incumbent = "c/gone";
  options.min_speedup = 1.02;
  CHECK(at_last([&] { return winner() == "a/fast"; }));
  options.incumbent = "b/slow";
  CHECK(at_last([&] { return winner() == "a/fast"; }));
}

// Launches that take as many milliseconds as planned, beside which their product is nothing; the
// first two come before the rounds.
void figures_of_planned_launches() {
  const Example e;
  for (const auto& [planned, median, spread] :
       {std::tuple{std::vector{5.0, 5.0, 2.5, 2.0, 2.4, 2.2}, 2300, 300},
        std::tuple{std::vector{5.0, 5.0, 2.4, 2.0, 2.5, 2.2, 2.4}, 2400, 200},
        std::tuple{std::vector{5.0, 5.0, 6.0, 2.0, 6.5, 2.2, 7.0, 2.4}, 2200,
                   4300}}) {  // disturbed
    CHECK(at_last([&] {
      size_t launch = 0;
      const Fake fake("a/planned", 1, 0, [&](const Problem&, const Launch&) {
        test::spin(1000.0 * planned[launch++]);
        return Status::ok();
      });
      const RaceOptions options = all_stay(static_cast<int>(planned.size()) - 2);
      const Entrant entrant = run(e, {&fake}, options).entrants[0];
      CHECK(entrant.samples == options.rounds);
      return std::abs(entrant.median_us - median) < 90 &&
             std::abs(entrant.spread_us - spread) < 150;
    }));
  }
}

// A variant that converts the values before each launch, which takes three milliseconds.
class Converting final : public Variant {
 public:
  Converting() : Variant(DeviceType::kCpu, "a/converting") {}

  Support supports(const Problem&, const Device&) const override { return Support::yes(); }
  double estimate_us(const Problem&, const Device&) const override { return 1; }
  int64_t prepared_bytes(const Problem&, const Device&) const override { return 64; }
  Status prepare(const Problem&, const Launch& l) const override {
    CHECK(l.prepared != nullptr);
    ++conversions;
    test::spin(3e3);
    return Status::ok();
  }
  Status launch(const Problem& p, const Launch& l) const override { return fake_.launch(p, l); }

  mutable int conversions = 0;

 private:
  Fake fake_{"b/fake", 1, 1000};
};

void a_conversion_counts_unless_frozen() {
  Example e;
  const Converting thawed, frozen;
  const Record slow = run(e, {&thawed});
  CHECK(slow.find("a/converting")->median_us >= 4000);
  CHECK(thawed.conversions >= 5);  // one for each launch: two to begin with, then the samples
  e.problem.frozen = true;
  CHECK(at_last([&] { return run(e, {&frozen}).find("a/converting")->median_us < 3000; }));
  CHECK(frozen.conversions % 2 == 0 && frozen.conversions <= 10);  // of each race two
}

// Each of these is the fastest, and must not win.
void disqualifies(const char* what, const test::Fault& fault, Outcome expected) {
  const Example e;
  const Fake right("a/right", 9, 100), faulty("b/faulty", 1, 0, fault);
  const Record r = run(e, {&faulty, &right});
  const Entrant* found = r.find("b/faulty");
  std::printf("%s: %s\n", what, found->reason.c_str());
  CHECK(r.winner == "a/right");
  CHECK(found->outcome == expected);
  CHECK(!found->reason.empty());
}

void wrong_results_disqualify() {
  using Spoil = void (*)(const Problem& p, const Launch& l);
  const std::pair<const char*, Spoil> spoils[] = {
      {"one element off",
       [](const Problem& p, const Launch& l) { *element(l, p, 5, 69) += 1e-4f; }},
      {"last element not written",
       [](const Problem& p, const Launch& l) {
         std::memset(element(l, p, p.m - 1, p.n - 1), 0xFF, 4);
       }},
      {"a NaN", [](const Problem& p, const Launch& l) { *element(l, p, 0, 0) = NAN; }},
      {"an infinity", [](const Problem& p, const Launch& l) { *element(l, p, 3, 3) = INFINITY; }},
      {"writes between rows",
       [](const Problem& p, const Launch& l) { *element(l, p, 4, p.n) = 0; }},
      {"writes behind the last row",
       [](const Problem& p, const Launch& l) { *element(l, p, p.m - 1, p.n + 1) = 0; }},
      {"writes before the first element",
       [](const Problem& p, const Launch& l) { *(element(l, p, 0, 0) - 1) = 0; }},
      {"reads between rows of B",
       [](const Problem& p, const Launch& l) {
         *element(l, p, 0, 0) += 0 * static_cast<const float*>(l.b)[p.n];
       }},
      {"reads between rows of C",
       [](const Problem& p, const Launch& l) {
         *element(l, p, 0, 0) += 0 * *element(l, p, 0, p.n);
       }},
      {"an empty row that is not zero",
       [](const Problem& p, const Launch& l) { *element(l, p, 5, 0) = 1e-30f; }},
  };
  for (const auto& [what, spoil] : spoils) {
    disqualifies(what, test::silent(spoil), Outcome::kWrongResult);
  }
}

void failures_disqualify() {
  for (const auto& [code, outcome] : {std::pair{StatusCode::kLaunchFailed, Outcome::kLaunchFailed},
                                      {StatusCode::kOutOfMemory, Outcome::kOutOfMemory}}) {
    disqualifies(
        name_of(outcome),
        [code = code](const Problem&, const Launch&) { return Status::failed(code, "planted"); },
        outcome);
  }
}

// What those before it wrote must not pass for its result.
void a_variant_that_writes_nothing_is_wrong() {
  class Idle final : public Variant {
   public:
    Idle() : Variant(DeviceType::kCpu, "b/idle") {}
    Support supports(const Problem&, const Device&) const override { return Support::yes(); }
    double estimate_us(const Problem&, const Device&) const override { return 2; }
    Status launch(const Problem&, const Launch&) const override { return Status::ok(); }
  };
  const Example e;
  const Fake right("a/right", 1, 100);
  const Idle idle;
  const Record r = run(e, {&right, &idle});
  CHECK(r.winner == "a/right");
  CHECK(r.find("b/idle")->outcome == Outcome::kWrongResult);
  CHECK(std::isinf(r.find("b/idle")->error));
}

void all_wrong_means_no_winner() {
  const Example e;
  const auto zero =
      test::silent([](const Problem& p, const Launch& l) { *element(l, p, 0, 0) = 0; });
  const Fake a("a/a", 1, 0, zero), b("b/b", 2, 0, zero);
  const Record r = run(e, {&a, &b});
  CHECK(r.winner.empty());
  CHECK(r.find("a/a")->outcome == Outcome::kWrongResult);
  CHECK(r.find("b/b")->outcome == Outcome::kWrongResult);
}

void memory_is_bounded() {
  const Example e;
  Fake small("a/small", 1, 10), large("b/large", 2, 0);
  large.scratch = int64_t{1} << 40;
  Record r = run(e, {&small, &large});
  CHECK(r.winner == "a/small");
  CHECK(r.find("b/large")->outcome == Outcome::kOutOfMemory);
  CHECK(large.launches == 0);
  RaceOptions options;
  options.tuning_bytes = 1000;  // not even the operands
  r = run(e, {&small}, options);
  CHECK(r.winner.empty());
  CHECK(r.failure.find("tuning_bytes") != std::string::npos);
  CHECK(r.find("a/small")->outcome == Outcome::kSkipped);
  CHECK(r.find("a/small")->reason == "there was no race");
}

void hopeless_estimates_are_skipped() {
  const Example e;
  const Fake fast("a/fast", 1, 20), hopeless("b/hopeless", 1e9, 0);
  const Record r = run(e, {&hopeless, &fast});
  CHECK(r.winner == "a/fast");
  CHECK(r.find("b/hopeless")->outcome == Outcome::kSkipped);
  CHECK(hopeless.launches == 0);
  // Alone it has to run, whatever it takes.
  CHECK(run(e, {&hopeless}).winner == "b/hopeless");
}

void configurations_do_not_crowd_out_a_family() {
  const Example e;
  // A launch takes a quarter of the budget, and the first variant is launched twice to begin with.
  const Fake first("a/1", 30e3, 150e3), second("a/2", 31e3, 150e3), third("a/3", 32e3, 150e3);
  const Fake other("b/only", 60e3, 20e3);
  RaceOptions options;
  options.budget_s = 0.6;
  CHECK(at_last([&] {
    return run(e, {&first, &second, &third, &other}, options).winner == "b/only";
  }));
}

// As code and libraries are loaded, for longer than most launches may take.
void a_long_first_launch_costs_a_contender_nothing() {
  const Example e;
  size_t launches = 0;
  const Fake other("a/other", 20, 1000),
      loads("b/loads", 30, 200, [&](const Problem&, const Launch&) {
        if (launches++ == 0) test::spin(150e3);
        return Status::ok();
      });
  RaceOptions options;
  options.budget_s = 0.6;
  CHECK(at_last([&] {
    launches = 0;
    return run(e, {&other, &loads}, options).winner == "b/loads";
  }));
}

void a_spent_budget_ends_a_race_of_long_launches() {
  const Example e;
  const Fake fast("a/fast", 1, 40e3), far("b/far", 2, 250e3);
  RaceOptions options;
  options.budget_s = 0.3;  // less than two launches of each take
  const Record r = run(e, {&fast, &far}, options);
  CHECK(r.winner == "a/fast");
  CHECK(r.find("a/fast")->samples == 3);
  CHECK(r.find("b/far")->outcome == Outcome::kEliminated);
  CHECK(r.find("b/far")->samples == 1);
  CHECK(r.find("b/far")->reason == "far behind after 1 round");
}

void who_takes_far_longer_than_expected_keeps_nobody_out() {
  const Example e;
  const Fake slow("a/slow", 1, 400e3), fast("b/fast", 10e3, 20), hopeless("c/hopeless", 300e3, 0);
  RaceOptions options;
  options.budget_s = 0.3;  // the first launch alone takes more
  const Record r = run(e, {&slow, &fast, &hopeless}, options);
  CHECK(r.winner == "b/fast");
  CHECK(r.find("c/hopeless")->outcome == Outcome::kSkipped);
}

void short_launches_are_warm() {
  const Example e;
  bool mine = false;  // what the caches hold
  const Fake shared("a/shared", 1, 200, [&](const Problem&, const Launch&) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(mine ? 0 : 1);
    while (std::chrono::steady_clock::now() < until) {
    }
    mine = true;
    return Status::ok();
  });
  const Fake other("b/other", 2, 400, [&](const Problem&, const Launch&) {
    mine = false;
    return Status::ok();
  });
  CHECK(at_last([&] { return run(e, {&shared, &other}).winner == "a/shared"; }));
}

void the_text_form_keeps_everything() {
  const Example e;
  const Fake fast("a/fast", 1, 20), slow("b/slow", 2, 500);
  const Record r = run(e, {&fast, &slow});
  std::string why;
  const auto back = parse_record(to_text(r), &why);
  CHECK(back.has_value());
  CHECK(to_text(*back) == to_text(r));
  CHECK(back->entrants.size() == 2 && back->winner == r.winner);
}

}  // namespace

void a_host_may_stop_it() {
  const Example e;
  const Fake first("a/first", 1, 20), second("b/second", 2, 20);
  for (const int calls : {0, 1, 2, 5}) {  // before the first launch, between, in the rounds
    const int before = first.launches + second.launches;
    int left = calls, launches = before;
    RaceOptions options;
    options.progress = [&](double, std::string_view) {
      launches = first.launches + second.launches;
      return left-- > 0;
    };
    const Record r = run(e, {&first, &second}, options);
    CHECK(left == -1);  // it does not ask again
    CHECK(r.stopped && r.winner.empty() && !r.failure.empty());
    CHECK(first.launches + second.launches == launches);
    CHECK((launches == before) == (calls == 0));
    for (const Entrant& entrant : r.entrants) CHECK(entrant.outcome == Outcome::kSkipped);
  }
  CHECK(!run(e, {&first, &second}).stopped);
}

int main() {
  fastest_right_one_wins();
  a_disturbed_one_wins();
  who_writes_to_its_operands_is_out();
  nobody_is_dropped_without_elimination();
  the_budget_bounds_a_race_without_elimination();
  who_is_behind_is_dropped();
  within_the_noise_less_memory_wins();
  within_the_noise_the_smaller_estimate_wins();
  a_first_launch_that_compiles_costs_nothing();
  the_incumbent_stays_unless_beaten();
  figures_of_planned_launches();
  a_conversion_counts_unless_frozen();
  wrong_results_disqualify();
  failures_disqualify();
  a_variant_that_writes_nothing_is_wrong();
  all_wrong_means_no_winner();
  memory_is_bounded();
  hopeless_estimates_are_skipped();
  configurations_do_not_crowd_out_a_family();
  a_long_first_launch_costs_a_contender_nothing();
  a_spent_budget_ends_a_race_of_long_launches();
  who_takes_far_longer_than_expected_keeps_nobody_out();
  short_launches_are_warm();
  the_text_form_keeps_everything();
  a_host_may_stop_it();
  std::puts("all passed");
}
