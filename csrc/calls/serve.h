// From a bound product to its launch: remembered, or decided by the tuner.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "calls/bound.h"
#include "calls/scratch.h"
#include "exported.h"

namespace sparse_autotune {

// Chooses the variant, unless one is asked for, makes what it needs, and launches it: where that
// fails, the next best. Scratch is the caller's, and on a CPU this thread's where it is small.
SPARSE_AUTOTUNE_API void serve(Bound& bound, const std::optional<std::string>& variant);

// The same with scratch from elsewhere: aligned memory of layout.bytes() for that variant.
using FindScratch = std::function<void*(const ScratchLayout& layout, const Variant& variant)>;
void serve(Bound& bound, const std::optional<std::string>& variant,
           const FindScratch& find_scratch);

// The same where the tuner has settled the choice for patterns of this kind before. False where it
// has not, and where the launch fails: all of it is to be done by serve() then.
SPARSE_AUTOTUNE_API bool serve_settled(Bound& bound, const std::optional<std::string>& variant);

// Of any operator: after `failed` did not launch, another is to be chosen, unless nothing can run
// on that stream any more, a graph captures it, or `selector` names the variant: then this throws.
void demote_or_refuse(AnyProblem problem, const AnyLaunch& launch, std::string_view selector,
                      bool is_capturing, const AnyVariant& failed, const Status& status);

// What it asks of such memory now: chooses, and makes what is needed, but launches nothing.
int64_t scratch_bytes(Bound& bound, const std::optional<std::string>& variant);

}  // namespace sparse_autotune
