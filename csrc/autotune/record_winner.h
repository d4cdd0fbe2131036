// Which variant a remembered race decides for.
#pragma once

#include <string_view>
#include <vector>

#include "autotune/record.h"
#include "variant.h"

namespace sparse_autotune {

// Whether nothing legal has joined since the race: a new variant gets one. Were the winner's
// absence a reason too, two problems of one signature, of which it may run one, would forget each
// other's race in turn. A process without PyTorch cannot race its variants: its record, which lists
// none, serves here too.
bool decides(const Record& record, const std::vector<const AnyVariant*>& entrants);

// The record's winner of calls that a CUDA graph is to hold, or of others; where that is not legal
// here, the fastest that is.
const AnyVariant* winner_of(const Record& record, const std::vector<const AnyVariant*>& entrants,
                            bool capturing);

// The record with that entrant as one that failed to launch, and won by the fastest of the others
// wherever it had won.
Record without(Record record, std::string_view name, const Status& status);

}  // namespace sparse_autotune
