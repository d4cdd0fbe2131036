#include "autotune/tuner.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <set>
#include <unordered_map>

#include "autotune/host.h"
#include "autotune/problem_text.h"
#include "autotune/registry.h"
#include "autotune/settings.h"
#include "autotune/signature.h"

namespace sparse_autotune {
namespace {

struct Key {
  std::string device_class, signature;
  std::string joined() const { return device_class + "\n" + signature; }
};

// All of it guarded by one mutex, which is never held while a host or a race is called.
struct State {
  std::mutex mutex;
  std::unordered_map<std::string, std::shared_ptr<const Record>> records;
  std::set<std::string> in_flight;  // signatures that a thread is racing: single flight
  std::set<std::string> missed;     // nothing on disk either: not asked for again
  std::set<std::string> told;       // reported as missed, once each
  std::set<std::pair<std::string, std::string>> demoted;  // key and variant: failed to launch
  std::set<std::string> unmeasured;  // signatures that were missed and did not race
};
State& state() {
  static State* const s = new State;  // used while the process winds down
  return *s;
}

std::atomic<int64_t> races{0};

// Races would disturb each other's times, so one runs at a time. Not the state's mutex: that is
// never held for long.
std::mutex& race_mutex() {
  static std::mutex* const mutex = new std::mutex;
  return *mutex;
}

const Variant* cheapest(const std::vector<const Variant*>& variants, const Problem& problem,
                        const Device& device) {
  return *std::min_element(
      variants.begin(), variants.end(), [&](const Variant* a, const Variant* b) {
        return a->estimate_us(problem, device) < b->estimate_us(problem, device);
      });
}

// The record's winner or, where that is not legal here, the fastest that is; if nothing legal has
// joined since: a new variant gets its race. Were the winner's absence a reason for one too, two
// problems of one signature, of which it may run one, would forget each other's race in turn.
const Variant* winner_of(const Record& record, const std::vector<const Variant*>& entrants) {
  for (const Variant* v : entrants) {
    if (record.find(v->name()) == nullptr) return nullptr;
  }
  const auto legal_here = [&](std::string_view name) {
    const auto it = std::find_if(entrants.begin(), entrants.end(),
                                 [&](const Variant* v) { return v->name() == name; });
    return it == entrants.end() ? nullptr : *it;
  };
  if (const Variant* winner = legal_here(record.winner)) return winner;
  for (const Entrant& e : record.entrants) {  // fastest first
    const Variant* v = e.timed() ? legal_here(e.name) : nullptr;
    if (v != nullptr) return v;
  }
  return nullptr;
}

// Those that did not fail to launch on a problem of that signature.
std::vector<const Variant*> not_demoted(const Key& key, std::vector<const Variant*> entrants) {
  const std::lock_guard<std::mutex> lock(state().mutex);
  if (!state().demoted.empty()) {
    std::erase_if(entrants, [&](const Variant* v) {
      return state().demoted.count({key.joined(), std::string(v->name())}) != 0;
    });
  }
  return entrants;
}

std::shared_ptr<const Record> remembered(const Key& key) {
  const std::lock_guard<std::mutex> lock(state().mutex);
  const auto it = state().records.find(key.joined());
  return it == state().records.end() ? nullptr : it->second;
}

void remember(const Key& key, const Record& record) {
  const std::lock_guard<std::mutex> lock(state().mutex);
  state().records[key.joined()] = std::make_shared<const Record>(record);
  state().missed.erase(key.joined());
}

// Counts a miss that is not to race. Whether it is the first of its signature to be told of.
bool count_miss(const Key& key, Mode mode) {
  const std::lock_guard<std::mutex> lock(state().mutex);
  state().unmeasured.insert(key.signature);
  return mode == Mode::kRecord && state().told.insert(key.joined()).second;
}

// The host may have it by now.
void ask_again(const Key& key) {
  const std::lock_guard<std::mutex> lock(state().mutex);
  state().missed.erase(key.joined());
}

// From the host's store into memory.
std::shared_ptr<const Record> loaded(const Key& key) {
  {
    const std::lock_guard<std::mutex> lock(state().mutex);
    if (state().missed.count(key.joined()) != 0) return nullptr;
  }
  const auto text = host()->load(key.device_class, key.signature);
  std::string why;
  const auto record = text ? parse_record(*text, &why) : std::nullopt;
  const bool of_signature = record && record->signature == key.signature;
  // A GPU's signature does not name the GPU.
  if (of_signature && record->device_class == key.device_class) {
    remember(key, *record);
    return remembered(key);
  }
  if (text) {
    if (record) why = of_signature ? record->device_class : "it is of another signature";
    host()->report({.kind = Event::Kind::kWarning,
                    .signature = key.signature,
                    .text = "the remembered race of " + key.signature +
                            (of_signature ? " is of another device" : " is unreadable") +
                            " and will be replaced: " + why});
  }
  const std::lock_guard<std::mutex> lock(state().mutex);
  state().missed.insert(key.joined());
  return nullptr;
}

Choice failure(std::string text) {
  Choice choice;
  choice.error = std::move(text);
  return choice;
}
Choice chosen(const Variant* variant, bool final) {
  Choice choice;
  choice.variant = variant;
  choice.final = final;
  return choice;
}

std::string reasons(const std::vector<const Variant*>& variants, const Problem& problem,
                    const Device& device) {
  std::string text;
  for (const Variant* v : variants) {
    const Support support = legal(*v, problem, device);
    if (!support) text += "\n  " + std::string(v->name()) + ": " + support.reason();
  }
  return text;
}

// Removes a signature from the ones in flight, whatever happens to its race.
class Ticket {
 public:
  explicit Ticket(const Key& key) : key_(key.joined()) {
    const std::lock_guard<std::mutex> lock(state().mutex);
    mine_ = state().in_flight.insert(key_).second;
  }
  ~Ticket() {
    if (!mine_) return;
    const std::lock_guard<std::mutex> lock(state().mutex);
    state().in_flight.erase(key_);
  }
  Ticket(const Ticket&) = delete;
  Ticket& operator=(const Ticket&) = delete;
  bool mine() const { return mine_; }

 private:
  std::string key_;
  bool mine_;
};

Record announced_race(const Key& key, const Problem& problem, const Device& device,
                      const Launch& data, const std::vector<const Variant*>& entrants,
                      RaceOptions options, bool save) {
  const std::shared_ptr<Host> to = host();
  to->report({.kind = Event::Kind::kStart,
              .signature = key.signature,
              .description = describe(problem),
              .device = device.name});
  options.progress = [&](double fraction, std::string_view variant) {
    return to->report(
        {.kind = Event::Kind::kProgress, .fraction = fraction, .variant = std::string(variant)});
  };
  if (save) {
    std::shared_ptr<const Record> before = remembered(key);
    if (before == nullptr) before = loaded(key);
    if (before != nullptr) options.incumbent = before->winner;
  }
  Record record = race(problem, device, data, entrants, options);
  if (save && !record.winner.empty()) {
    remember(key, record);
    outdate_decisions();  // of an earlier race, where this one replaces it
    to->save(key.device_class, key.signature, to_text(record));
  }
  to->report({.kind = Event::Kind::kFinish, .signature = key.signature, .record = record});
  return record;
}

Choice unmeasured(const Key& key, const Problem& problem, const Device& device,
                  const std::vector<const Variant*>& entrants, std::string_view family, Mode mode,
                  bool capturing) {
  if (mode != Mode::kOn) {
    if (count_miss(key, mode)) {
      host()->report({.kind = Event::Kind::kMissed,
                      .signature = key.signature,
                      .description = describe(problem),
                      .device = device.name,
                      .device_class = key.device_class,
                      .problem = problem_text(problem),
                      .selector = std::string(family)});
    }
  } else if (capturing) {
    static std::atomic<bool> warned{false};
    if (!warned.exchange(true)) {
      host()->report({.kind = Event::Kind::kWarning,
                      .signature = key.signature,
                      .text = "a product of a kind never raced was met while a CUDA graph is being "
                              "captured; the cost model chose its variant. Run it once before, or "
                              "call prepare() and tune()"});
    }
  }
  return chosen(cheapest(entrants, problem, device), !capturing);
}

// Of the races that current settings ask for.
RaceOptions options_of(const Settings& current, std::string_view family) {
  RaceOptions options;
  options.budget_s = current.budget_s;
  options.timing = current.timing;
  options.buckets = current.buckets;
  options.min_speedup = current.min_speedup;
  options.tuning_bytes = current.tuning_bytes;
  options.family = family;
  return options;
}

Key key_of(const Problem& problem, const Device& device, const RaceOptions& options) {
  return {device_class(device),
          signature(problem, device, options.timing, options.family, options.buckets)};
}

Choice choose_among(const std::vector<const Variant*>& legal_ones, std::string_view family,
                    const Problem& problem, const Device& device, const Launch& data,
                    bool capturing, const BeforeRace& before_race) {
  const Settings current = settings();
  const RaceOptions options = options_of(current, family);
  const Key key = key_of(problem, device, options);
  const auto entrants = not_demoted(key, legal_ones);
  if (entrants.empty()) {
    return failure("every legal variant failed to launch on " + describe(problem));
  }
  if (entrants.size() == 1) return chosen(entrants.front(), true);
  if (current.mode == Mode::kOff) return chosen(cheapest(entrants, problem, device), true);
  for (const auto& find : {remembered, loaded}) {
    const auto record = find(key);
    const Variant* winner = record == nullptr ? nullptr : winner_of(*record, entrants);
    if (winner != nullptr) return chosen(winner, true);
  }
  if (capturing || current.mode != Mode::kOn) {
    return unmeasured(key, problem, device, entrants, family, current.mode, capturing);
  }
  // Nobody waits for a race of somebody else's: the cost model serves until it is over.
  const Ticket ticket(key);
  const std::unique_lock<std::mutex> racing(race_mutex(), std::try_to_lock);
  if (!ticket.mine() || !racing.owns_lock()) {
    return chosen(cheapest(entrants, problem, device), false);
  }
  // Somebody's race may have ended between the look above and the ticket.
  if (const auto record = remembered(key)) {
    if (const Variant* winner = winner_of(*record, entrants)) return chosen(winner, true);
  }
  if (!host()->may_race(key.device_class, key.signature)) {
    ask_again(key);
    const auto record = loaded(key);
    const Variant* winner = record == nullptr ? nullptr : winner_of(*record, entrants);
    return chosen(winner != nullptr ? winner : cheapest(entrants, problem, device), true);
  }
  ++races;
  before_race(entrants);
  const Record record = announced_race(key, problem, device, data, entrants, options, true);
  if (const Variant* winner = find_variant(record.winner)) return chosen(winner, true);
  if (record.stopped) return chosen(cheapest(entrants, problem, device), false);
  // Nothing could be measured (no memory for a race, say): the guess stands, the reasons are told.
  const bool wrong = std::all_of(record.entrants.begin(), record.entrants.end(),
                                 [](const Entrant& e) { return e.failed(); });
  if (!wrong) return chosen(cheapest(entrants, problem, device), true);
  std::string text = "every legal variant failed on " + describe(problem) + ":";
  for (const Entrant& e : record.entrants) text += "\n  " + e.name + ": " + e.reason;
  return failure(text);
}

// The record with that entrant as one that failed to launch, and won by the fastest of the others.
Record without(Record record, std::string_view name, const Status& status) {
  for (Entrant& e : record.entrants) {
    if (e.name != name) continue;
    const bool memory = status.code() == StatusCode::kOutOfMemory;
    e.outcome = memory ? Outcome::kOutOfMemory : Outcome::kLaunchFailed;
    e.reason = "after the race: " + status.message();
    e.median_us = e.spread_us = 0;
    e.samples = 0;
  }
  std::stable_partition(record.entrants.begin(), record.entrants.end(),
                        [](const Entrant& e) { return e.timed(); });
  if (record.winner != name) return record;
  Entrant& next = record.entrants.front();  // fastest first
  record.winner = next.timed() ? next.name : "";
  if (next.timed()) {
    next.outcome = Outcome::kOk;
    next.reason.clear();
  }
  return record;
}

}  // namespace

Choice choose(const Problem& problem, const Device& device, const Launch& data,
              std::string_view selector, bool capturing, const BeforeRace& before_race) {
  try {
    if (selector.empty()) {
      const auto entrants = legal_variants(problem, device);
      if (!entrants.empty()) {
        return choose_among(entrants, "", problem, device, data, capturing, before_race);
      }
      std::vector<const Variant*> all = all_variants();
      std::erase_if(all, [&](const Variant* v) { return v->op() != problem.op; });
      return failure("no variant can compute " + describe(problem) + " on " + device.name +
                     reasons(all, problem, device));
    }
    if (const Variant* exact = find_variant(selector)) {
      const Support support = legal(*exact, problem, device);
      if (support) return chosen(exact, true);
      return failure("variant '" + std::string(selector) +
                     "' is not legal here: " + support.reason());
    }
    const auto family = select_variants(selector, problem.device);
    if (family.empty()) {
      return failure("no variant or family for this device is named '" + std::string(selector) +
                     "'");
    }
    std::vector<const Variant*> entrants;
    for (const Variant* v : family) {
      if (legal(*v, problem, device)) entrants.push_back(v);
    }
    if (!entrants.empty()) {
      return choose_among(entrants, selector, problem, device, data, capturing, before_race);
    }
    return failure("variant '" + std::string(selector) +
                   "' is not legal here:" + reasons(family, problem, device));
  } catch (const std::exception& error) {
    return failure(error.what());
  }
}

bool demote(const Problem& problem, const Device& device, std::string_view selector,
            const Variant& variant, const Status& status) {
  const Settings current = settings();
  const Key key = key_of(problem, device, options_of(current, selector));
  std::vector<const Variant*> others = selector.empty() ? legal_variants(problem, device)
                                                        : select_variants(selector, problem.device);
  std::erase_if(others, [&](const Variant* v) { return v == &variant; });
  if (not_demoted(key, std::move(others)).empty()) return false;
  {
    const std::lock_guard<std::mutex> lock(state().mutex);
    state().demoted.insert({key.joined(), std::string(variant.name())});
  }
  std::shared_ptr<const Record> before = remembered(key);
  if (before == nullptr && current.mode != Mode::kOff) before = loaded(key);
  if (before != nullptr && before->find(variant.name()) != nullptr) {
    const Record corrected = without(*before, variant.name(), status);
    remember(key, corrected);
    if (current.mode == Mode::kOn)
      host()->save(key.device_class, key.signature, to_text(corrected));
  }
  outdate_decisions();
  host()->report({.kind = Event::Kind::kWarning,
                  .signature = key.signature,
                  .text = std::string(variant.name()) + " failed to launch on " +
                          describe(problem) + ", the next best replaces it: " + status.message()});
  return true;
}

Record race_now(const Problem& problem, const Device& device, const Launch& data,
                const std::vector<const Variant*>& entrants, RaceOptions options, bool save) {
  const Key key = key_of(problem, device, options);
  const std::lock_guard<std::mutex> racing(race_mutex());
  if (save) ++races;
  return announced_race(key, problem, device, data, entrants, std::move(options), save);
}

std::optional<Record> race_if_unknown(const Problem& problem, const Device& device,
                                      const Launch& data,
                                      const std::vector<const Variant*>& entrants,
                                      RaceOptions options) {
  const Key key = key_of(problem, device, options);
  const std::lock_guard<std::mutex> racing(race_mutex());
  for (const auto& find : {remembered, loaded}) {
    const auto record = find(key);
    if (record != nullptr && winner_of(*record, entrants) != nullptr) return std::nullopt;
  }
  ++races;
  return announced_race(key, problem, device, data, entrants, std::move(options), true);
}

int64_t tuning_count() { return races; }

std::vector<std::string> missed_signatures() {
  const std::lock_guard<std::mutex> lock(state().mutex);
  return {state().unmeasured.begin(), state().unmeasured.end()};
}

std::vector<std::pair<std::string, std::string>> known_records() {
  const std::lock_guard<std::mutex> lock(state().mutex);
  std::vector<std::pair<std::string, std::string>> found;
  for (const auto& [key, record] : state().records) {
    found.emplace_back(key.substr(0, key.find('\n')), to_text(*record));
  }
  return found;
}

void forget_records() {
  const std::lock_guard<std::mutex> lock(state().mutex);
  state().records.clear();
  state().missed.clear();
  state().told.clear();
  state().unmeasured.clear();
  state().demoted.clear();
  outdate_decisions();
}

void tuner_after_fork() {
  if (state().mutex.try_lock()) {
    state().mutex.unlock();
  } else {
    new (&state()) State;  // another thread was changing it: what it left stays behind
  }
  new (&race_mutex()) std::mutex;
  state().in_flight.clear();  // their threads did not survive the fork
}

}  // namespace sparse_autotune
