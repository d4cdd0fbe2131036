#include "autotune/known_races.h"

#include <atomic>
#include <mutex>
#include <new>
#include <set>
#include <unordered_map>

#include "autotune/host.h"

namespace sparse_autotune {
namespace {

// Of one signature: a server meets ever new numbers of columns.
constexpr size_t kMostSettled = 1024;

// Of one signature. Lives as long as the process: decisions look at `changes`.
struct Known {
  std::shared_ptr<const Record> record;              // null: none
  std::atomic<uint64_t> changes{0};                  // of the record
  std::unordered_map<std::string, Settled> settled;  // by kind

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

}  // namespace

KnownRecord remembered(const RaceKey& key) {
  const std::lock_guard<std::mutex> lock(state().mutex);
  const Known& known = state().known[key.joined()];
  return {known.record, Validity(known.changes)};
}

void remember(const RaceKey& key, const Record& record) {
  const std::lock_guard<std::mutex> lock(state().mutex);
  state().known[key.joined()].change(std::make_shared<const Record>(record));
  state().missed.erase(key.joined());
}

void load_record(const RaceKey& key) {
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

void ask_again(const RaceKey& key) {
  const std::lock_guard<std::mutex> lock(state().mutex);
  state().missed.erase(key.joined());
}

std::shared_ptr<const Record> known_record(const RaceKey& key) {
  if (auto record = remembered(key).record) return record;
  load_record(key);
  return remembered(key).record;
}

bool count_miss(const RaceKey& key, Mode mode) {
  const std::lock_guard<std::mutex> lock(state().mutex);
  state().unmeasured.insert(key.signature);
  return mode == Mode::kRecord && state().told.insert(key.joined()).second;
}

void note_failed_launch(const RaceKey& key, const AnyVariant& variant) {
  const std::lock_guard<std::mutex> lock(state().mutex);
  state().demoted.insert({key.joined(), std::string(variant.name())});
  Known& known = state().known[key.joined()];
  known.change(known.record);
}

std::vector<const AnyVariant*> not_demoted(const RaceKey& key,
                                           std::vector<const AnyVariant*> entrants) {
  const std::lock_guard<std::mutex> lock(state().mutex);
  if (!state().demoted.empty()) {
    std::erase_if(entrants, [&](const AnyVariant* v) {
      return state().demoted.count({key.joined(), std::string(v->name())}) != 0;
    });
  }
  return entrants;
}

void settle(const RaceKey& key, const std::string& kind, const Settled& decided) {
  const std::lock_guard<std::mutex> lock(state().mutex);
  if (!state().demoted.empty() || !decided.choice.validity.holds()) return;
  auto& settled = state().known[key.joined()].settled;
  if (settled.size() >= kMostSettled) settled.clear();
  settled[kind] = decided;
}

std::optional<Settled> settled_before(const RaceKey& key, const std::string& kind) {
  const std::lock_guard<std::mutex> lock(state().mutex);
  const auto known = state().known.find(key.joined());
  if (known == state().known.end()) return std::nullopt;
  const auto found = known->second.settled.find(kind);
  return found == known->second.settled.end() ? std::nullopt : std::optional(found->second);
}

Ticket::Ticket(const RaceKey& key) : key_(key.joined()) {
  const std::lock_guard<std::mutex> lock(state().mutex);
  mine_ = state().in_flight.insert(key_).second;
}

Ticket::~Ticket() {
  if (!mine_) return;
  const std::lock_guard<std::mutex> lock(state().mutex);
  state().in_flight.erase(key_);
}

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
  outdate_decisions();  // those that plans remember are of records too
}

void known_races_after_fork() {
  if (state().mutex.try_lock()) {
    state().mutex.unlock();
  } else {
    new (&state()) State;  // another thread was changing it: what it left stays behind
  }
  state().in_flight.clear();  // their threads did not survive the fork
}

}  // namespace sparse_autotune
