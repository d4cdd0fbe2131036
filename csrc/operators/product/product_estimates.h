// What the cost models of products say, asked from outside.
#pragma once

#include <string>
#include <vector>

#include "autotune/device.h"
#include "exported.h"
#include "operators/product/product.h"

namespace sparse_autotune {

// What cost models expect, microseconds, of variants by name, whether or not they are legal or this
// machine has such a GPU. `problem` is a problem's text, to which `cuts` and `groups` are added.
// Throws std::invalid_argument where the text is none or a name unknown.
SPARSE_AUTOTUNE_API std::vector<double> product_estimates(const std::string& problem,
                                                          const RowCuts& cuts,
                                                          const GroupCounts& groups,
                                                          const GpuFacts& gpu,
                                                          const std::vector<std::string>& variants);

}  // namespace sparse_autotune
