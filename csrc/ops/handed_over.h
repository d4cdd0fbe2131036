// Results that torch's kernels have in tensors of their own.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <span>

#include "operators/attention/attention.h"
#include "ops/arguments.h"

namespace sparse_autotune {

struct attention::HandedOver {
  std::array<std::optional<Tensor>, 3> results;  // in the order of the operator's
};

// Gives what a variant found to whoever launched it: as it is, where the launch takes that and it
// lies as the operator's results do; what does not is copied to its place. `places` are the
// tensors that the launch has for the results.
void give_results(const attention::Launch& launch, std::span<const Tensor> places,
                  std::span<const Tensor> found);

}  // namespace sparse_autotune
