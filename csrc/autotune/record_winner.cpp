#include "autotune/record_winner.h"

#include <algorithm>
#include <string>

#include "autotune/registry.h"

namespace sparse_autotune {

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

}  // namespace sparse_autotune
