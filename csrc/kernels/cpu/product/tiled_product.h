// One launch of cpu_tiled with one level's micro-kernels and one way to cut the product.
#pragma once

#include "kernels/cpu/shared/tiled_blocking.h"
#include "operators/product/product.h"

namespace sparse_autotune::cpu_tiled {

void run_product(const Problem& problem, const Launch& launch, const Microkernels& kernels,
                 const Cut& cut);

}  // namespace sparse_autotune::cpu_tiled
