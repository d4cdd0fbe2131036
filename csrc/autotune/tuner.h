// Which variant serves a problem: forced, remembered, raced, or guessed.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "autotune/race.h"
#include "autotune/record.h"
#include "plan/validity.h"
#include "variant.h"

namespace sparse_autotune {

struct Choice {
  const AnyVariant* variant = nullptr;
  std::string error;    // set exactly when there is no variant: why not
  bool final = false;   // stands until a setting changes, or `validity` ends; otherwise ask again
  Validity validity{};  // ends when a race of the same signature is saved, or forgotten
  // Calls inside of a capture get this one, where it is another: a graph has no part of the host's.
  const AnyVariant* captured = nullptr;
};

// `data` holds the user's pattern, stream and threads. `selector` forces a variant
// ("family/config") or a family; empty leaves the choice to the tuner. While `capturing`, nothing
// is measured. `before_race` puts what the entrants need into `data`; what it throws passes
// through. One race runs at a time: a call that would race during another one does not wait, the
// cost model serves it.
using BeforeRace = std::function<void(const std::vector<const AnyVariant*>& entrants)>;
Choice choose(AnyProblem problem, const Device& device, const AnyLaunch& data,
              std::string_view selector, bool capturing, const BeforeRace& before_race);

// The same where other patterns of the same kind have settled it before: no variant where they have
// not, or where it is not legal here. Nothing is measured, and the host is not asked.
Choice settled(AnyProblem problem, const Device& device, std::string_view selector);

// `variant`, which choose() gave for `problem` and that selector, failed to launch, and what it ran
// on still works. Problems of the signature are not given to it again in this process, the
// remembered race says so from now on (on the host's disk too, unless the mode forbids to write),
// and the host is warned. False where no other could be chosen.
bool demote(AnyProblem problem, const Device& device, std::string_view selector,
            const AnyVariant& variant, const Status& status);

// Of the races that those settings ask for; `family` limits them as a selector does.
RaceOptions options_of(const Settings& current, std::string_view family);

// Races now, whatever is remembered, among `entrants`, once no other race runs. `save` replaces the
// remembered record.
Record race_now(AnyProblem problem, const Device& device, const AnyLaunch& data,
                const std::vector<const AnyVariant*>& entrants, RaceOptions options, bool save);

// The same where no remembered record serves `entrants`; nullopt where one does. Unlike a call
// it waits for races of others. `options.family` limits it as a selector does.
std::optional<Record> race_if_unknown(AnyProblem problem, const Device& device,
                                      const AnyLaunch& data,
                                      const std::vector<const AnyVariant*>& entrants,
                                      RaceOptions options);

// The race that decides such a problem, if one is remembered. Races nobody.
std::optional<Record> find_record(AnyProblem problem, const Device& device);

// How many races this process has run for calls and tune() (not for benchmark()).
int64_t tuning_count();

// Makes locks usable in a forked child.
void tuner_after_fork();

}  // namespace sparse_autotune
