// A problem as text: what mode "record" writes, and an offline race is made from.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "exported.h"
#include "variant.h"

namespace sparse_autotune {

// "op=matmul device=cpu m=4096 ...": words "key=value", each value a name or a whole number. Of the
// pattern it holds the number of blocks and the longest row (-1: not known), not what a plan
// derives from the indices.
SPARSE_AUTOTUNE_API std::string problem_text(const Problem& problem);

// nullopt, and why, for anything but the text of a problem whose operands could exist: sizes are
// bounded, so that no product of them overflows. Throws nothing (but bad_alloc).
std::optional<Problem> parse_problem(std::string_view text, std::string* why);

}  // namespace sparse_autotune
