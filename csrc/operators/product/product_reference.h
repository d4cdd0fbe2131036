// The fp64 reference of products and sampled products.
#pragma once

#include "operator.h"
#include "operators/product/product.h"

namespace sparse_autotune {

// `expected` gets kTileElements elements for each of `count` tiles of the output of `operands`, on
// its device: with its threads, or enqueued on its stream.
Status product_reference(const Problem& problem, const Launch& operands, const Tile* tiles,
                         int64_t count, Expected* expected);

namespace detail {
Status product_reference_cuda(const Problem& problem, const Launch& operands, const Tile* tiles,
                              int64_t count, Expected* expected);
}  // namespace detail

}  // namespace sparse_autotune
