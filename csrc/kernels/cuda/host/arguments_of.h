// A kernel's arguments begin with where a product's operands lie. Host code.
#pragma once

#include "variant.h"

namespace sparse_autotune {

// All else is zero.
template <typename Arguments>
Arguments arguments_of(const Launch& l) {
  Arguments a{};
  a.crow_indices = l.crow_indices;
  a.col_indices = l.col_indices;
  a.positions = l.positions;
  a.values = l.values;
  a.b = l.b;
  a.bias = l.bias;
  a.c = l.c;
  return a;
}

}  // namespace sparse_autotune
