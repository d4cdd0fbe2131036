// Which variant serves a problem: forced, remembered, raced, or guessed.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "autotune/race.h"
#include "autotune/record.h"
#include "variant.h"

namespace sparse_autotune {

struct Choice {
  const Variant* variant = nullptr;
  std::string error;   // set exactly when there is no variant: why not
  bool final = false;  // stands until a setting changes; otherwise ask again at the next call
};

// `data` holds the user's pattern, stream and threads. `selector` forces a variant
// ("family/config") or a family; empty leaves the choice to the tuner. While `capturing`, nothing
// is measured. `before_race` puts what the entrants need into `data`. Never throws; takes no lock
// while a race runs.
using BeforeRace = std::function<void(const std::vector<const Variant*>& entrants)>;
Choice choose(const Problem& problem, const Device& device, const Launch& data,
              std::string_view selector, bool capturing, const BeforeRace& before_race);

// Races now, whatever is remembered, among `entrants`. `save` replaces the remembered record.
Record race_now(const Problem& problem, const Device& device, const Launch& data,
                const std::vector<const Variant*>& entrants, RaceOptions options, bool save);

// The race that decides such a problem, if one is remembered. Races nobody.
std::optional<Record> find_record(const Problem& problem, const Device& device);

// How many races this process has run for products and tune() (not for benchmark()).
int64_t tuning_count();

// The records in memory, as (device class, text).
std::vector<std::pair<std::string, std::string>> known_records();
// Forgets them, so that the next miss asks the host again.
void forget_records();

// Makes locks usable in a forked child.
void tuner_after_fork();

}  // namespace sparse_autotune
