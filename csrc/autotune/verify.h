// Whether a result is right.
#pragma once

#include <cstdint>

#include "variant.h"

namespace sparse_autotune {

// Whether outputs of `elements` elements are right, and why not. `missing`: how many of them are
// NaN; `written`: how many elements in the outputs and around them are not poison; `worst`: the
// largest |result - expected| as a share of what is allowed. `error` becomes that, infinity where
// an element is missing or too many are written.
Status judge(int64_t elements, uint64_t missing, uint64_t written, double worst, double* error);

}  // namespace sparse_autotune
