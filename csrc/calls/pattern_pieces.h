// What variants read of a pattern besides its indices: row orders, row groups and tables of tasks.
#pragma once

#include <vector>

#include "calls/bound.h"

namespace sparse_autotune {

// Puts those that one of `variants` asks for into the product's launch, building what is not there
// yet. A CUDA graph that is being captured builds row groups and tasks itself, each time it runs,
// and goes without a row order.
void add_pieces(Bound& bound, const std::vector<const AnyVariant*>& variants);

// The decision for `variant`, whose pieces have been added.
Decision decision_for(const Bound& bound, const Variant& variant);

}  // namespace sparse_autotune
