// What every kernel of a product is told; each adds its own.
#pragma once

#include "operators/product/product.h"

namespace sparse_autotune {

struct ProductArguments {
  const void* crow_indices;
  const void* col_indices;
  const void* positions;  // Launch::positions; null: blocks lie in order
  const void* values;
  const void* b;
  const void* bias;  // or null
  void* c;
  Activation activation;
  bool wide_indices;  // all of them are int64
};

}  // namespace sparse_autotune
