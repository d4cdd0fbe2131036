// A problem as text: what mode "record" writes, and an offline race is made from.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "exported.h"
#include "variant.h"

namespace sparse_autotune {

// "op=NAME device=cpu ...": the operator's name, then what it says of the problem.
SPARSE_AUTOTUNE_API std::string problem_text(AnyProblem problem);

// nullopt, and why, for anything but the text of a problem, of any operator, whose operands could
// exist. Throws nothing (but bad_alloc).
std::optional<OwnedProblem> parse_problem(std::string_view text, std::string* why);

}  // namespace sparse_autotune
