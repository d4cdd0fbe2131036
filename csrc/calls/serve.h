// From a bound product to its launch: remembered, or decided by the tuner.
#pragma once

#include <optional>
#include <string>

#include "calls/bound.h"
#include "calls/ready_launch.h"
#include "exported.h"

namespace sparse_autotune {

// Chooses the variant, unless one is asked for, and makes what it needs; all but its scratch.
ReadyLaunch make_ready(Bound& bound, const std::optional<std::string>& variant);

// The same, and launches it. Scratch is the caller's, and on a CPU this thread's where it is small.
SPARSE_AUTOTUNE_API void serve(Bound& bound, const std::optional<std::string>& variant);

}  // namespace sparse_autotune
