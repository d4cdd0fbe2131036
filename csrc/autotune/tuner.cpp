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

namespace {

struct Key {
  std::string device_class, signature;
  std::string joined() const { return device_class + "\n" + signature; }
};

// What a record decided, all variants that are legal having been found in it.
struct Settled {
  uint64_t generation = 0;  // of the settings and variants then
  Choice choice;
};

// Of one signature. Lives as long as the process: decisions look at `changes`.
struct Known {
  std::shared_ptr<const Record> record;  // null: none
  std::atomic<uint64_t> changes{0};      // of the record
  // By the signature with the number of columns itself: problems with patterns of one kind.
  std::unordered_map<std::string, Settled> settled;

  void change(std::shared_ptr<const Record> to) {
    record = std::move(to);
    ++changes;
    settled.clear();
  }
};

// All of it guarded by one mutex, which is never held while a host or a race is called.
struct State {
  std::mutex mutex;
  std::unordered_map<std::string, Known> known;
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

// Races would disturb each other's times: each holds this mutex from its beginning to its end. Not
// the state's mutex, which is never held for long.
std::mutex& race_mutex() {
  static std::mutex* const mutex = new std::mutex;
  return *mutex;
}

DeviceType asked_device(AnyProblem problem) { return problem.op().asked(problem).device; }

const AnyVariant* cheapest(const std::vector<const AnyVariant*>& variants, AnyProblem problem,
                           const Device& device) {
  return *std::min_element(
      variants.begin(), variants.end(), [&](const AnyVariant* a, const AnyVariant* b) {
        return a->estimate_us(problem, device) < b->estimate_us(problem, device);
      });
}

struct Found {
  std::shared_ptr<const Record> record;  // null: none
  Validity validity;                     // of what is decided from it, or from there being none
};

// Whether nothing legal has joined since the race: a new variant gets one. Were the winner's
// absence a reason too, two problems of one signature, of which it may run one, would forget each
// other's race in turn. A process without PyTorch cannot race its variants: its record, which lists
// none, serves here too.
bool decides(const Record& record, const std::vector<const AnyVariant*>& entrants) {
  const auto with_torch = [&] {
    return std::any_of(record.entrants.begin(), record.entrants.end(), [](const Entrant& e) {
      const AnyVariant* v = find_variant(e.name);
      return v != nullptr && !comes_with_core(*v);
    });
  };
  // Who is in the record first: whose library a variant lies in takes a microsecond to find out,
  // and every new pattern comes by here.
  return std::none_of(entrants.begin(), entrants.end(), [&](const AnyVariant* v) {
    return record.find(v->name()) == nullptr && (comes_with_core(*v) || with_torch());
  });
}

// The record's winner of calls that a CUDA graph is to hold, or of others; where that is not legal
// here, the fastest that is.
const AnyVariant* winner_of(const Record& record, const std::vector<const AnyVariant*>& entrants,
                            bool capturing) {
  const auto legal_here = [&](const Entrant& e) {
    const auto it = std::find_if(entrants.begin(), entrants.end(),
                                 [&](const AnyVariant* v) { return v->name() == e.name; });
    return it == entrants.end() || (capturing && !e.captures) ? nullptr : *it;
  };
  const bool apart = capturing && !record.captured_winner.empty();
  const Entrant* named = record.find(apart ? record.captured_winner : record.winner);
  const AnyVariant* winner = named != nullptr ? legal_here(*named) : nullptr;
  for (const Entrant& e : record.entrants) {  // fastest first
    if (winner != nullptr) return winner;
    if (e.timed()) winner = legal_here(e);
  }
  return winner;
}

// Those that did not fail to launch on a problem of that signature.
std::vector<const AnyVariant*> not_demoted(const Key& key,
                                           std::vector<const AnyVariant*> entrants) {
  const std::lock_guard<std::mutex> lock(state().mutex);
  if (!state().demoted.empty()) {
    std::erase_if(entrants, [&](const AnyVariant* v) {
      return state().demoted.count({key.joined(), std::string(v->name())}) != 0;
    });
  }
  return entrants;
}

Found remembered(const Key& key) {
  const std::lock_guard<std::mutex> lock(state().mutex);
  const Known& known = state().known[key.joined()];
  return {known.record, Validity(known.changes)};
}

void remember(const Key& key, const Record& record) {
  const std::lock_guard<std::mutex> lock(state().mutex);
  state().known[key.joined()].change(std::make_shared<const Record>(record));
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
void load(const Key& key) {
  {
    const std::lock_guard<std::mutex> lock(state().mutex);
    if (state().missed.count(key.joined()) != 0) return;
  }
  const auto text = host()->load(key.device_class, key.signature);
  std::string why;
  const auto record = text ? parse_record(*text, &why) : std::nullopt;
  const bool of_signature = record && record->signature == key.signature;
  // A GPU's signature does not name the GPU.
  if (of_signature && record->device_class == key.device_class) {
    remember(key, *record);
    return;
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
}

// What memory or else the host's store has of the signature; null: nothing.
std::shared_ptr<const Record> known_record(const Key& key) {
  if (auto record = remembered(key).record) return record;
  load(key);
  return remembered(key).record;
}

Choice failure(std::string text) {
  Choice choice;
  choice.error = std::move(text);
  return choice;
}
Choice chosen(const AnyVariant* variant, bool final, Validity validity = {}) {
  Choice choice;
  choice.variant = variant;
  choice.final = final;
  choice.validity = validity;
  return choice;
}

// Of `entrants`, by a record; no variant where it does not decide.
Choice by_record(const Found& found, const std::vector<const AnyVariant*>& entrants,
                 bool capturing) {
  if (found.record == nullptr || !decides(*found.record, entrants)) return {};
  const AnyVariant* eager = winner_of(*found.record, entrants, false);
  const AnyVariant* captured = winner_of(*found.record, entrants, true);
  if (eager == nullptr || (capturing && captured == nullptr)) return {};
  const bool alike = captured == nullptr || captured == eager;
  Choice choice = chosen(capturing ? captured : eager, alike || !capturing, found.validity);
  if (!alike && !capturing) choice.captured = captured;
  return choice;
}

// By what memory or else the host's store has of the signature; no variant where neither knows.
Choice by_what_is_known(const Key& key, const std::vector<const AnyVariant*>& entrants,
                        bool capturing, Found* found) {
  *found = remembered(key);
  Choice choice = by_record(*found, entrants, capturing);
  if (choice.variant != nullptr) return choice;
  load(key);
  *found = remembered(key);
  return by_record(*found, entrants, capturing);
}

std::string reasons(const std::vector<const AnyVariant*>& variants, AnyProblem problem,
                    const Device& device) {
  std::string text;
  for (const AnyVariant* v : variants) {
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

Record announced_race(const Key& key, AnyProblem problem, const Device& device,
                      const AnyLaunch& data, const std::vector<const AnyVariant*>& entrants,
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
    if (const auto before = known_record(key)) {
      options.incumbent = before->winner;
      options.captured_incumbent = before->captured_winner;
    }
  }
  Record record = race(problem, device, data, entrants, options);
  if (save && !record.winner.empty()) {
    remember(key, record);
    to->save(key.device_class, key.signature, to_text(record));
  }
  to->report({.kind = Event::Kind::kFinish, .signature = key.signature, .record = record});
  return record;
}

Choice unmeasured(const Key& key, AnyProblem problem, const Device& device,
                  const std::vector<const AnyVariant*>& entrants, std::string_view family,
                  Mode mode, bool capturing, Validity validity) {
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
                      .text = "a call of a kind never raced was met while a CUDA graph is being "
                              "captured; the cost model chose its variant. Run it once before, or "
                              "call prepare() and tune()"});
    }
  }
  return chosen(cheapest(entrants, problem, device), !capturing, validity);
}

Key key_of(AnyProblem problem, const Device& device, const RaceOptions& options) {
  return {device_class(device),
          signature(problem, device, options.timing, options.family, options.buckets)};
}

// To ask every variant whether it is legal takes longer than all else that a new pattern costs
// here. So what a record has decided holds for further patterns of the same kind while its winners
// are legal for them, too.
std::string pattern_kind(AnyProblem problem, const Device& device, const RaceOptions& options) {
  return signature(problem, device, options.timing, options.family, Buckets::kExact);
}

void settle(const Key& key, const std::string& kind, uint64_t generation, const Choice& choice) {
  const std::lock_guard<std::mutex> lock(state().mutex);
  if (!state().demoted.empty() || !choice.validity.holds()) return;
  state().known[key.joined()].settled[kind] = {generation, choice};
}

Choice settled_choice(AnyProblem problem, const Device& device, std::string_view family) {
  const Settings current = settings();
  if (current.mode == Mode::kOff) return {};
  const RaceOptions options = options_of(current, family);
  const Key key = key_of(problem, device, options);
  const std::string kind = pattern_kind(problem, device, options);
  Settled found;
  {
    const std::lock_guard<std::mutex> lock(state().mutex);
    const auto known = state().known.find(key.joined());
    if (known == state().known.end()) return {};
    const auto settled = known->second.settled.find(kind);
    if (settled == known->second.settled.end()) return {};
    found = settled->second;
  }
  const auto is_legal = [&](const AnyVariant* v) {
    return v == nullptr || legal(*v, problem, device);
  };
  const bool holds = found.generation == settings_generation() && is_legal(found.choice.variant) &&
                     is_legal(found.choice.captured);
  return holds ? found.choice : Choice{};
}

Choice choose_among(const std::vector<const AnyVariant*>& legal_ones, std::string_view family,
                    AnyProblem problem, const Device& device, const AnyLaunch& data, bool capturing,
                    const BeforeRace& before_race) {
  const uint64_t generation = settings_generation();
  const Settings current = settings();
  const RaceOptions options = options_of(current, family);
  const Key key = key_of(problem, device, options);
  const auto entrants = not_demoted(key, legal_ones);
  if (entrants.empty()) {
    return failure("every legal variant failed to launch on " + describe(problem));
  }
  if (entrants.size() == 1) return chosen(entrants.front(), true, remembered(key).validity);
  if (current.mode == Mode::kOff) return chosen(cheapest(entrants, problem, device), true);
  Found found;
  Choice choice = by_what_is_known(key, entrants, capturing, &found);
  if (choice.variant != nullptr) {
    if (!capturing) settle(key, pattern_kind(problem, device, options), generation, choice);
    return choice;
  }
  if (capturing || current.mode != Mode::kOn) {
    return unmeasured(key, problem, device, entrants, family, current.mode, capturing,
                      found.validity);
  }
  // Nobody waits for a race of somebody else's: the cost model serves until it is over.
  const Ticket ticket(key);
  const std::unique_lock<std::mutex> racing(race_mutex(), std::try_to_lock);
  if (!ticket.mine() || !racing.owns_lock()) {
    return chosen(cheapest(entrants, problem, device), false);
  }
  // Somebody's race may have ended between the look above and the ticket.
  choice = by_record(remembered(key), entrants, capturing);
  if (choice.variant != nullptr) return choice;
  if (!host()->may_race(key.device_class, key.signature)) {
    ask_again(key);
    choice = by_what_is_known(key, entrants, capturing, &found);
    if (choice.variant != nullptr) return choice;
    return chosen(cheapest(entrants, problem, device), true, found.validity);
  }
  ++races;
  before_race(entrants);
  const Record record = announced_race(key, problem, device, data, entrants, options, true);
  found = {std::make_shared<const Record>(record), remembered(key).validity};
  if (!record.winner.empty()) return by_record(found, entrants, capturing);
  if (record.stopped) return chosen(cheapest(entrants, problem, device), false);
  // Nothing could be measured (no memory for a race, say): the guess stands, the reasons are told.
  const bool wrong = std::all_of(record.entrants.begin(), record.entrants.end(),
                                 [](const Entrant& e) { return e.failed(); });
  if (!wrong) return chosen(cheapest(entrants, problem, device), true, found.validity);
  std::string text = "every legal variant failed on " + describe(problem) + ":";
  for (const Entrant& e : record.entrants) text += "\n  " + e.name + ": " + e.reason;
  return failure(text);
}

// The record with that entrant as one that failed to launch, and won by the fastest of the others
// wherever it had won.
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
  const auto next = [&](bool capturing) -> std::string {  // fastest first
    for (Entrant& e : record.entrants) {
      if (!e.timed() || (capturing && !e.captures)) continue;
      e.outcome = Outcome::kOk;
      e.reason.clear();
      return e.name;
    }
    return "";
  };
  if (record.winner == name) record.winner = next(false);
  if (record.captured_winner == name) record.captured_winner = next(true);
  return record;
}

}  // namespace

Choice settled(AnyProblem problem, const Device& device, std::string_view selector) {
  const bool is_one = !selector.empty() && find_variant(selector) != nullptr;
  return is_one ? Choice{} : settled_choice(problem, device, selector);
}

Choice choose(AnyProblem problem, const Device& device, const AnyLaunch& data,
              std::string_view selector, bool capturing, const BeforeRace& before_race) {
  try {
    if (!capturing) {
      const Choice choice = settled(problem, device, selector);
      if (choice.variant != nullptr) return choice;
    }
    const AnyVariant* const exact = selector.empty() ? nullptr : find_variant(selector);
    if (selector.empty()) {
      const auto entrants = legal_variants(problem, device);
      if (!entrants.empty()) {
        return choose_among(entrants, "", problem, device, data, capturing, before_race);
      }
      std::vector<const AnyVariant*> all = all_variants();
      std::erase_if(all, [&](const AnyVariant* v) { return &v->op() != &problem.op(); });
      return failure("no variant can compute " + describe(problem) + " on " + device.name +
                     reasons(all, problem, device));
    }
    if (exact != nullptr) {
      const Support support = legal(*exact, problem, device);
      if (support) return chosen(exact, true);
      return failure("variant '" + std::string(selector) +
                     "' is not legal here: " + support.reason());
    }
    const auto family = select_variants(selector, asked_device(problem));
    if (family.empty()) {
      return failure("no variant or family for this device is named '" + std::string(selector) +
                     "'");
    }
    std::vector<const AnyVariant*> entrants;
    for (const AnyVariant* v : family) {
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

bool demote(AnyProblem problem, const Device& device, std::string_view selector,
            const AnyVariant& variant, const Status& status) {
  const Settings current = settings();
  const Key key = key_of(problem, device, options_of(current, selector));
  std::vector<const AnyVariant*> others = selector.empty()
                                              ? legal_variants(problem, device)
                                              : select_variants(selector, asked_device(problem));
  std::erase_if(others, [&](const AnyVariant* v) { return v == &variant; });
  if (not_demoted(key, std::move(others)).empty()) return false;
  {
    const std::lock_guard<std::mutex> lock(state().mutex);
    state().demoted.insert({key.joined(), std::string(variant.name())});
    Known& known = state().known[key.joined()];
    known.change(known.record);  // what was decided for the signature stands no longer
  }
  const auto before = current.mode == Mode::kOff ? remembered(key).record : known_record(key);
  if (before != nullptr && before->find(variant.name()) != nullptr) {
    const Record corrected = without(*before, variant.name(), status);
    remember(key, corrected);
    if (current.mode == Mode::kOn)
      host()->save(key.device_class, key.signature, to_text(corrected));
  }
  host()->report({.kind = Event::Kind::kWarning,
                  .signature = key.signature,
                  .text = std::string(variant.name()) + " failed to launch on " +
                          describe(problem) + ", the next best replaces it: " + status.message()});
  return true;
}

Record race_now(AnyProblem problem, const Device& device, const AnyLaunch& data,
                const std::vector<const AnyVariant*>& entrants, RaceOptions options, bool save) {
  const Key key = key_of(problem, device, options);
  const std::lock_guard<std::mutex> racing(race_mutex());
  if (save) ++races;
  return announced_race(key, problem, device, data, entrants, std::move(options), save);
}

std::optional<Record> race_if_unknown(AnyProblem problem, const Device& device,
                                      const AnyLaunch& data,
                                      const std::vector<const AnyVariant*>& entrants,
                                      RaceOptions options) {
  const Key key = key_of(problem, device, options);
  const std::lock_guard<std::mutex> racing(race_mutex());
  Found found;
  if (by_what_is_known(key, entrants, false, &found).variant != nullptr) return std::nullopt;
  ++races;
  return announced_race(key, problem, device, data, entrants, std::move(options), true);
}

std::optional<Record> find_record(AnyProblem problem, const Device& device) {
  const auto record = known_record(key_of(problem, device, options_of(settings(), "")));
  return record != nullptr ? std::optional(*record) : std::nullopt;
}

int64_t tuning_count() { return races; }

std::vector<std::string> missed_signatures() {
  const std::lock_guard<std::mutex> lock(state().mutex);
  return {state().unmeasured.begin(), state().unmeasured.end()};
}

std::vector<std::pair<std::string, std::string>> known_records() {
  const std::lock_guard<std::mutex> lock(state().mutex);
  std::vector<std::pair<std::string, std::string>> found;
  for (const auto& [key, known] : state().known) {
    if (known.record == nullptr) continue;
    found.emplace_back(key.substr(0, key.find('\n')), to_text(*known.record));
  }
  return found;
}

void forget_records() {
  const std::lock_guard<std::mutex> lock(state().mutex);
  for (auto& [key, known] : state().known) known.change(nullptr);
  state().missed.clear();
  state().told.clear();
  state().unmeasured.clear();
  state().demoted.clear();
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
