// Who wins a race: of calls that the host launches one by one, and of launches in a CUDA graph.
#pragma once

#include <algorithm>

#include "autotune/race.h"
#include "autotune/record.h"

namespace sparse_autotune {

// Of two choices' times with the host's part: what is less is the host's own noise.
constexpr double kHostMatters = 1.1;

// Names the winners of a record whose entrants stand in the order of their estimates.
//
// In a CUDA graph it is the fastest that a graph can hold or, among those within `min_speedup` of
// it, the incumbent, else the one with less memory and the smaller estimate, so that two runs
// agree. Calls that the host launches take the same one, unless the host would be held up by it: if
// another's time with the host's part is shorter by more than kHostMatters, the best of those times
// decides in the same way.
void elect(const RaceOptions& options, Record* record);

}  // namespace sparse_autotune
