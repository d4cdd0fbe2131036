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
// A process without PyTorch cannot race its variants: its record, which lists none, serves here
// too.
const Variant* winner_of(const Record& record, const std::vector<const Variant*>& entrants) {
  const bool with_torch =
      std::any_of(record.entrants.begin(), record.entrants.end(), [](const Entrant& e) {
        const Variant* v = find_variant(e.name);
        return v != nullptr && !comes_with_core(*v);
      });
  for (const Variant* v : entrants) {
    const bool expected = with_torch || comes_with_core(*v);
    if (expected && record.find(v->name()) == nullptr) return nullptr;
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

// Whether this is the first miss of the signature to be told of.
bool first_time(const Key& key) {
  const std::lock_guard<std::mutex> lock(state().mutex);
  return state().told.insert(key.joined()).second;
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
                  const std::vector<const Variant*>& entrants, Mode mode, bool capturing) {
  if (mode == Mode::kRecord && first_time(key)) {
    host()->report({.kind = Event::Kind::kMissed,
                    .signature = key.signature,
                    .description = describe(problem)});
  } else if (capturing && mode == Mode::kOn) {
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

Choice choose_among(const std::vector<const Variant*>& entrants, std::string_view family,
                    const Problem& problem, const Device& device, const Launch& data,
                    bool capturing, const BeforeRace& before_race) {
  if (entrants.size() == 1) return chosen(entrants.front(), true);
  const Settings current = settings();
  if (current.mode == Mode::kOff) return chosen(cheapest(entrants, problem, device), true);
  const Key key{device_class(device), signature(problem, device, current.timing, family)};
  for (const auto& find : {remembered, loaded}) {
    const auto record = find(key);
    const Variant* winner = record == nullptr ? nullptr : winner_of(*record, entrants);
    if (winner != nullptr) return chosen(winner, true);
  }
  if (capturing || current.mode != Mode::kOn) {
    return unmeasured(key, problem, device, entrants, current.mode, capturing);
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
  RaceOptions options;
  options.budget_s = current.budget_s;
  options.timing = current.timing;
  options.tuning_bytes = current.tuning_bytes;
  options.family = family;
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

Record race_now(const Problem& problem, const Device& device, const Launch& data,
                const std::vector<const Variant*>& entrants, RaceOptions options, bool save) {
  const Key key{device_class(device), signature(problem, device, options.timing, "")};
  const std::lock_guard<std::mutex> racing(race_mutex());
  if (save) ++races;
  return announced_race(key, problem, device, data, entrants, std::move(options), save);
}

std::optional<Record> find_record(const Problem& problem, const Device& device) {
  const Key key{device_class(device), signature(problem, device, settings().timing, "")};
  for (const auto& find : {remembered, loaded}) {
    if (const auto record = find(key)) return *record;
  }
  return std::nullopt;
}

int64_t tuning_count() { return races; }

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
