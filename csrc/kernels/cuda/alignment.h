// What kernels that read 16 bytes at a time, by TMA or by themselves, ask of where operands lie.
// Host code.
#pragma once

#include <string>
#include <string_view>

#include "variant.h"

namespace sparse_autotune {

// `alignment`: the least of the operands', which the reason names.
inline Support aligned_to_16(std::string_view operands, int alignment) {
  if (alignment >= 16) return Support::yes();
  return Support::no(
      "needs addresses, leading dimensions and batch strides of " + std::string(operands) +
      " that are multiples of 16 bytes, one is a multiple of " + std::to_string(alignment));
}

}  // namespace sparse_autotune
