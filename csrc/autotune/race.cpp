#include "autotune/race.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <memory>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "autotune/bench.h"
#include "autotune/election.h"
#include "autotune/signature.h"

namespace sparse_autotune {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRoundsBeforeElimination = 3;
constexpr double kFarBehind = 1.5;  // times the leader's median: out after three rounds
constexpr double kBehind = 1.15;    // out after twice as many
constexpr double kFarAtOnce = 2;    // out after one, once the budget is spent
constexpr double kHopeless = 10;    // a first launch so much slower is not repeated
constexpr double kPromising = 0.2;  // of the best so far: expected to take less, never skipped
constexpr double kContender = 2;    // times the best so far: expected to take less, may yet win
constexpr int kMinRounds = 7;
constexpr int kMaxRounds = 25;
constexpr double kOverrun = 0.1;    // of the budget: what the least rounds may cost beyond it
constexpr double kDisturbed = 1.3;  // times the shortest sample: something else ran meanwhile
constexpr double kBurstUs = 300;    // of one sample, so that the clock's own error is small
constexpr int64_t kMaxBurst = 64;
constexpr double kHostBurstUs = 5000;  // of one sample: a GPU waits until the host has enqueued it

struct Runner {
  const AnyVariant* variant;
  double estimate_us;
  Entrant entrant;
  double first_us = 0;  // a launch before the rounds
  int64_t burst = 1;
  std::vector<double> samples, host_samples;
  bool racing = false;

  void add(const LaunchTime& taken) {
    samples.push_back(taken.device_us);
    host_samples.push_back(taken.host_us);
  }
};

// Of what nothing else disturbed: a neighbour on the device makes a sample longer, never shorter,
// and may do so to most of the few that a race has.
double median(std::vector<double> x) {
  const double most = kDisturbed * *std::min_element(x.begin(), x.end());
  std::erase_if(x, [&](double taken) { return taken > most; });
  const size_t half = x.size() / 2;
  std::nth_element(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(half), x.end());
  if (x.size() % 2 == 1) return x[half];
  return (x[half] + *std::max_element(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(half))) /
         2;
}

// As Entrant::eager_us().
double eager_median(const Runner& r) { return std::max(median(r.samples), median(r.host_samples)); }

double interquartile_range(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  return x[x.size() * 3 / 4] - x[x.size() / 4];
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

std::unique_ptr<Bench> make_bench(AnyProblem problem, const Device& device, const AnyLaunch& user,
                                  const BenchOptions& options, Status* status) {
#ifdef SPARSE_AUTOTUNE_WITH_CUDA
  if (problem.op().asked(problem).device == DeviceType::kCuda) {
    return make_cuda_bench(problem, device, user, options, status);
  }
#endif
  return make_cpu_bench(problem, device, user, options, status);
}

// The race proper, over runners sorted by estimate.
class Race {
 public:
  Race(std::vector<Runner>& runners, Bench& bench, const RaceOptions& options)
      : runners_(runners), bench_(bench), options_(options), start_(Clock::now()) {}

  void run() {
    const std::vector<Runner*> order = one_of_each_family_first();
    for (size_t i = 0; i < order.size() && !bench_.is_broken(); ++i) {
      if (!goes_on(0.3 * static_cast<double>(i) / static_cast<double>(order.size()), *order[i])) {
        return stop("the race was stopped");
      }
      qualify(*order[i]);
    }
    const int most = options_.rounds > 0 ? options_.rounds : kMaxRounds;
    const int least = std::min(most, kMinRounds);
    double spent = seconds() / options_.budget_s, last_round = 0;
    for (int round = 0; round < most && !bench_.is_broken(); ++round) {
      // Medians of long launches need fewer samples than there is time for.
      const bool enough = round >= least || (round >= kRoundsBeforeElimination &&
                                             (least - round) * last_round > kOverrun);
      if (options_.rounds == 0 && enough && spent > 1) break;
      for (Runner& runner : runners_) {
        if (!runner.racing) continue;
        const double part = std::max(static_cast<double>(round) / most, std::min(spent, 1.0));
        if (!goes_on(0.3 + 0.7 * part, runner)) return stop("the race was stopped");
        sample(runner);
      }
      const double now = seconds() / options_.budget_s;
      last_round = now - spent;
      spent = now;
      if (options_.eliminate) eliminate(round + 1, spent > 1);
      if (racing() == 0 || (options_.rounds == 0 && racing() == 1 && round + 1 >= least)) break;
    }
    if (bench_.is_broken()) stop("another variant broke the CUDA context");
  }

  // By the host: what was measured decides nothing.
  bool was_stopped() const { return was_stopped_; }

 private:
  double elapsed() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }
  // Of the budget.
  double seconds() const { return elapsed() - compiling_; }

  // A budget that runs out leaves out configurations, not families.
  std::vector<Runner*> one_of_each_family_first() const {
    std::vector<Runner*> order;
    std::set<std::string_view> seen;
    for (Runner& r : runners_) {                        // the cheapest of all is the first
      const bool known = std::isfinite(r.estimate_us);  // of others' kernels nobody knows
      const bool hopeless = known && r.estimate_us > kHopeless * runners_.front().estimate_us;
      if (!hopeless && seen.insert(r.variant->family()).second) order.push_back(&r);
    }
    for (Runner& r : runners_) {
      if (std::find(order.begin(), order.end(), &r) == order.end()) order.push_back(&r);
    }
    return order;
  }

  bool goes_on(double fraction, const Runner& runner) {
    if (options_.progress) was_stopped_ = !options_.progress(fraction, runner.variant->name());
    return !was_stopped_;
  }

  void stop(const char* why) {
    for (Runner& runner : runners_) {
      if (runner.entrant.failed()) continue;
      runner.entrant.outcome = Outcome::kSkipped;
      runner.entrant.reason = why;
      runner.racing = false;
    }
  }

  int64_t racing() const {
    return std::count_if(runners_.begin(), runners_.end(),
                         [](const Runner& r) { return r.racing; });
  }

  void fail(Runner& runner, const Status& status) {
    runner.racing = false;
    runner.entrant.reason = status.message();
    runner.entrant.outcome = status.code() == StatusCode::kOutOfMemory   ? Outcome::kOutOfMemory
                             : status.code() == StatusCode::kWrongResult ? Outcome::kWrongResult
                                                                         : Outcome::kLaunchFailed;
  }

  // Right? And, roughly, how fast?
  void qualify(Runner& runner) {
    // Where nobody is eliminated each may use the budget; a number of rounds is an order.
    const bool bounded = options_.eliminate || options_.rounds == 0;
    const double allowed_us = (options_.budget_s - (options_.eliminate ? seconds() : 0)) * 1e6;
    const bool have_one = racing() > 0;
    // One that took far longer than expected may have spent the budget alone.
    const bool promising = runner.estimate_us < kPromising * best_first_us_ ||
                           runner.entrant.name == options_.incumbent;
    // Of whom nobody knows: as long as the best so far.
    const bool known = std::isfinite(runner.estimate_us);
    const double expected_us = known ? runner.estimate_us : best_first_us_;
    if (bounded && have_one && !promising && expected_us * kRoundsBeforeElimination > allowed_us) {
      runner.entrant.outcome = Outcome::kSkipped;
      runner.entrant.reason = "its expected time does not fit the budget of the race";
      return;
    }
    double us = 0;
    const double begin = elapsed();
    Status status = bench_.check(*runner.variant, &runner.entrant.error, &us);
    if (!known) {
      if (Status alone = operands_left_alone(); status) status = std::move(alone);
      compiling_ += elapsed() - begin;
    }
    // The first launch pays for loading code and libraries: a second one counts, unless even the
    // first took a good part of the budget, and was not expected to win.
    const bool contender = expected_us < kContender * best_first_us_;
    const double most_us = (contender ? 1e6 : 0.1e6) * options_.budget_s;
    LaunchTime taken{us, 0};
    if (status) runner.entrant.captures = runner.variant->captures();
    if (status && (!options_.eliminate || !have_one || !known || us < most_us)) {
      status = bench_.time(*runner.variant, 1, &taken);
    }
    if (!status) return fail(runner, status);
    us = taken.device_us;
    const double hopeless = std::max(kHopeless, options_.min_speedup);
    if (options_.eliminate && have_one && us > hopeless * best_first_us_) {
      runner.entrant.outcome = Outcome::kEliminated;
      runner.entrant.reason = "its first launch was far behind";
      runner.add(taken);
      return;
    }
    runner.first_us = us;
    best_first_us_ = have_one ? std::min(best_first_us_, us) : us;
    const double most =
        std::min(kBurstUs / std::max(us, 0.1), kHostBurstUs / std::max(taken.host_us, 0.1));
    runner.burst = std::clamp<int64_t>(static_cast<int64_t>(most), 1, kMaxBurst);
    runner.racing = true;
  }

  // Code of others may write what it is to read, which spoils the operands for whoever comes next:
  // one that was right before tells, and gets them as they were.
  Status operands_left_alone() {
    const auto witness =
        std::find_if(runners_.begin(), runners_.end(), [](const Runner& r) { return r.racing; });
    double error = 0, us = 0;
    const auto is_right = [&] {
      return static_cast<bool>(bench_.check(*witness->variant, &error, &us));
    };
    if (witness == runners_.end() || is_right()) return Status::ok();
    Status renewed = bench_.renew();
    if (!renewed || !is_right()) return renewed;
    return Status::failed(StatusCode::kWrongResult, "it wrote to its operands");
  }

  void sample(Runner& runner) {
    LaunchTime taken;
    const Status status = bench_.time(*runner.variant, runner.burst, &taken);
    if (!status) return fail(runner, status);
    runner.add(taken);
  }

  // `late`: the budget is spent. Then a round and the launch before it serve for three rounds.
  void eliminate(int rounds, bool late) {
    const bool early = rounds < kRoundsBeforeElimination;
    if (early && !late) return;
    double best = INFINITY, host_bound = INFINITY;
    for (const Runner& r : runners_) {
      if (!r.racing || median(r.samples) >= best) continue;
      best = median(r.samples);
      host_bound = eager_median(r) / kHostMatters;
    }
    const double behind = early                                   ? kFarAtOnce
                          : rounds < 2 * kRoundsBeforeElimination ? kFarBehind
                                                                  : kBehind;
    const double bound = std::max(behind, options_.min_speedup);
    for (Runner& r : runners_) {
      if (!r.racing || median(r.samples) <= bound * best) continue;
      if (early && r.first_us <= bound * best_first_us_) continue;
      if (eager_median(r) < host_bound) continue;  // the leader would hold up the host
      r.racing = false;
      r.entrant.outcome = Outcome::kEliminated;
      r.entrant.reason =
          "far behind after " + std::to_string(rounds) + (rounds == 1 ? " round" : " rounds");
    }
  }

  std::vector<Runner>& runners_;
  Bench& bench_;
  const RaceOptions& options_;
  const Clock::time_point start_;
  double compiling_ = 0;  // that first launches of others' code took, which may compile it
  double best_first_us_ = 0;
  bool was_stopped_ = false;
};

// Sorted by estimate; `place` gets room for those whose memory a race may take.
std::vector<Runner> line_up(const std::vector<const AnyVariant*>& entrants, AnyProblem problem,
                            const Device& device, BenchOptions* place) {
  std::vector<Runner> runners;
  for (const AnyVariant* v : entrants) {
    Runner runner{v, v->estimate_us(problem, device), {}};
    runner.entrant.name = v->name();
    if (std::isfinite(runner.estimate_us)) runner.entrant.expected_us = runner.estimate_us;
    const int64_t scratch = v->workspace_bytes(problem, device);
    const int64_t prepared = v->prepared_bytes(problem, device);
    runner.entrant.memory_bytes = scratch + prepared;
    if (scratch + prepared > place->tuning_bytes / 2) {
      runner.entrant.outcome = Outcome::kOutOfMemory;
      runner.entrant.reason = "it needs " + std::to_string(scratch + prepared) +
                              " bytes, more than half of settings.tuning_bytes";
    } else {
      place->scratch_bytes = std::max(place->scratch_bytes, scratch);
      place->prepared_bytes = std::max(place->prepared_bytes, prepared);
    }
    runners.push_back(std::move(runner));
  }
  std::stable_sort(runners.begin(), runners.end(),
                   [](const Runner& a, const Runner& b) { return a.estimate_us < b.estimate_us; });
  return runners;
}

// What is known before the race.
Record record_of(AnyProblem problem, const Device& device, const RaceOptions& options) {
  Record record;
  record.signature = signature(problem, device, options.timing, options.family, options.buckets);
  record.device_class = device_class(device);
  record.device = device.name;
  record.description = describe(problem);
  record.when = utc_now();
  const Work work = problem.op().work(problem, device);
  record.nnz_flops = work.nnz_flops;
  record.dense_flops = work.dense_flops;
  record.bytes = work.bytes;
  record.peak_tflops = work.peak_tflops;
  record.peak_gbps = device.memory_gbps;
  return record;
}

// The winners, and all in their order.
void conclude(std::vector<Runner> runners, const RaceOptions& options, Record* record) {
  for (Runner& r : runners) {
    if (r.racing) r.entrant.outcome = Outcome::kOk;
    if (r.samples.empty() || r.entrant.failed()) continue;
    r.entrant.median_us = median(r.samples);
    r.entrant.spread_us = interquartile_range(r.samples);
    r.entrant.host_us = median(r.host_samples);
    r.entrant.samples = static_cast<int64_t>(r.samples.size());
  }
  for (Runner& r : runners) record->entrants.push_back(std::move(r.entrant));
  elect(options, record);
  std::stable_sort(record->entrants.begin(), record->entrants.end(),
                   [](const Entrant& a, const Entrant& b) {
                     if (a.timed() != b.timed()) return a.timed();
                     return a.timed() && a.median_us < b.median_us;
                   });
}

}  // namespace

Record race(AnyProblem problem, const Device& device, const AnyLaunch& user,
            const std::vector<const AnyVariant*>& entrants, const RaceOptions& options) {
  const Clock::time_point start = Clock::now();
  BenchOptions place;
  place.cold = options.timing == Timing::kCold;
  place.tuning_bytes = options.tuning_bytes;
  std::vector<Runner> runners = line_up(entrants, problem, device, &place);
  Record record = record_of(problem, device, options);
  Status status = Status::ok();
  const std::unique_ptr<Bench> bench = make_bench(problem, device, user, place, &status);
  if (bench != nullptr) {
    std::vector<Runner> able;
    std::vector<Runner> unable;
    for (Runner& r : runners) (r.entrant.failed() ? unable : able).push_back(std::move(r));
    Race contest(able, *bench, options);
    contest.run();
    record.stopped = contest.was_stopped();
    record.timing = bench->is_cold() ? Timing::kCold : Timing::kWarm;
    if (bench->is_broken()) record.failure = "a variant broke the CUDA context";
    if (record.stopped) record.failure = "the race was stopped";
    runners = std::move(able);
    runners.insert(runners.end(), std::make_move_iterator(unable.begin()),
                   std::make_move_iterator(unable.end()));
  } else {
    record.failure = status.message();
    for (Runner& r : runners) {
      if (!r.entrant.failed()) r.entrant.reason = "there was no race";
    }
  }
  conclude(std::move(runners), options, &record);
  record.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return record;
}

}  // namespace sparse_autotune
