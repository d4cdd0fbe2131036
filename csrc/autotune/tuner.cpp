#include "autotune/tuner.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <new>
#include <optional>

#include "autotune/host.h"
#include "autotune/known_races.h"
#include "autotune/problem_text.h"
#include "autotune/record_winner.h"
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

std::atomic<int64_t> races{0};

// Races would disturb each other's times: each holds this mutex from its beginning to its end.
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
Choice by_record(const KnownRecord& found, const std::vector<const AnyVariant*>& entrants,
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
Choice by_what_is_known(const RaceKey& key, const std::vector<const AnyVariant*>& entrants,
                        bool capturing, KnownRecord* found) {
  *found = remembered(key);
  Choice choice = by_record(*found, entrants, capturing);
  if (choice.variant != nullptr) return choice;
  load_record(key);
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

Record announced_race(const RaceKey& key, AnyProblem problem, const Device& device,
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

Choice unmeasured(const RaceKey& key, AnyProblem problem, const Device& device,
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

RaceKey key_of(AnyProblem problem, const Device& device, const RaceOptions& options) {
  return {device_class(device),
          signature(problem, device, options.timing, options.family, options.buckets)};
}

// To ask every variant whether it is legal takes longer than all else that a new pattern costs
// here. So what a record has decided holds for further patterns of the same kind while its winners
// are legal for them, too.
std::string pattern_kind(AnyProblem problem, const Device& device, const RaceOptions& options) {
  return signature(problem, device, options.timing, options.family, Buckets::kExact);
}

Choice settled_choice(AnyProblem problem, const Device& device, std::string_view family) {
  const Settings current = settings();
  if (current.mode == Mode::kOff) return {};
  const RaceOptions options = options_of(current, family);
  const RaceKey key = key_of(problem, device, options);
  const std::string kind = pattern_kind(problem, device, options);
  const std::optional<Settled> found = settled_before(key, kind);
  if (!found || found->generation != settings_generation()) return {};
  const auto is_legal = [&](const AnyVariant* v) {
    return v == nullptr || legal(*v, problem, device);
  };
  const Choice& choice = found->choice;
  return is_legal(choice.variant) && is_legal(choice.captured) ? choice : Choice{};
}

Choice choose_among(const std::vector<const AnyVariant*>& legal_ones, std::string_view family,
                    AnyProblem problem, const Device& device, const AnyLaunch& data, bool capturing,
                    const BeforeRace& before_race) {
  const uint64_t generation = settings_generation();
  const Settings current = settings();
  const RaceOptions options = options_of(current, family);
  const RaceKey key = key_of(problem, device, options);
  const auto entrants = not_demoted(key, legal_ones);
  if (entrants.empty()) {
    return failure("every legal variant failed to launch on " + describe(problem));
  }
  if (entrants.size() == 1) return chosen(entrants.front(), true, remembered(key).validity);
  if (current.mode == Mode::kOff) return chosen(cheapest(entrants, problem, device), true);
  KnownRecord found;
  Choice choice = by_what_is_known(key, entrants, capturing, &found);
  if (choice.variant != nullptr) {
    if (!capturing) settle(key, pattern_kind(problem, device, options), {generation, choice});
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
  before_race(entrants);
  ++races;
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

}  // namespace

Choice settled(AnyProblem problem, const Device& device, std::string_view selector) {
  const bool is_one = !selector.empty() && find_variant(selector) != nullptr;
  return is_one ? Choice{} : settled_choice(problem, device, selector);
}

Choice choose(AnyProblem problem, const Device& device, const AnyLaunch& data,
              std::string_view selector, bool capturing, const BeforeRace& before_race) {
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
    return failure("no variant or family for this device is named '" + std::string(selector) + "'");
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
}

bool demote(AnyProblem problem, const Device& device, std::string_view selector,
            const AnyVariant& variant, const Status& status) {
  const Settings current = settings();
  const RaceKey key = key_of(problem, device, options_of(current, selector));
  std::vector<const AnyVariant*> others = selector.empty()
                                              ? legal_variants(problem, device)
                                              : select_variants(selector, asked_device(problem));
  std::erase_if(others, [&](const AnyVariant* v) { return v == &variant; });
  if (not_demoted(key, std::move(others)).empty()) return false;
  note_failed_launch(key, variant);
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
  const RaceKey key = key_of(problem, device, options);
  const std::lock_guard<std::mutex> racing(race_mutex());
  if (save) ++races;
  return announced_race(key, problem, device, data, entrants, std::move(options), save);
}

std::optional<Record> race_if_unknown(AnyProblem problem, const Device& device,
                                      const AnyLaunch& data,
                                      const std::vector<const AnyVariant*>& entrants,
                                      RaceOptions options) {
  const RaceKey key = key_of(problem, device, options);
  const std::lock_guard<std::mutex> racing(race_mutex());
  KnownRecord found;
  if (by_what_is_known(key, entrants, false, &found).variant != nullptr) return std::nullopt;
  ++races;
  return announced_race(key, problem, device, data, entrants, std::move(options), true);
}

std::optional<Record> find_record(AnyProblem problem, const Device& device) {
  const auto record = known_record(key_of(problem, device, options_of(settings(), "")));
  return record != nullptr ? std::optional(*record) : std::nullopt;
}

int64_t tuning_count() { return races; }

void tuner_after_fork() {
  known_races_after_fork();
  new (&race_mutex()) std::mutex;
}

}  // namespace sparse_autotune
