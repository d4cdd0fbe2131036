// Where the operands of a product lie: what the arguments of most kernels begin with.
#pragma once

#include "variant.h"

namespace sparse_autotune {

struct ProductOperands {
  const void* crow_indices;
  const void* col_indices;
  const void* positions;  // null: blocks lie in order
  const void* values;
  const void* b;
  const void* bias;  // null: none
  void* c;
};

inline ProductOperands operands_of(const Launch& l) {
  return {l.crow_indices, l.col_indices, l.positions, l.values, l.b, l.bias, l.c};
}

}  // namespace sparse_autotune
