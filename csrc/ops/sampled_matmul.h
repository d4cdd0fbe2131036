// The sampled product's operator.
#pragma once

#include "ops/sampled_arguments.h"

namespace sparse_autotune {

// x @ y, summed over leading dimensions, at the stored blocks of a pattern: a new contiguous tensor
// of values.
Tensor sampled_matmul(const SampledArguments& arguments);

}  // namespace sparse_autotune
