// From fp32 or fp64 and the side of a small block to the kernel that was compiled for them. Host
// code.
#pragma once

#include <cstdint>
#include <utility>

#include "variant.h"

namespace sparse_autotune {

// Calls f for a side of 1 to kMost: [&]<typename T, int kSide>() { ... }.
template <int kMost, typename F>
void with_block_side(DType dtype, int64_t side, F&& f) {
  const auto with = [&]<typename T, int... kBelow>(std::integer_sequence<int, kBelow...>, T*) {
    static_cast<void>(
        ((side == kBelow + 1 && (f.template operator()<T, kBelow + 1>(), true)) || ...));
  };
  constexpr std::make_integer_sequence<int, kMost> kSides;
  if (dtype == DType::kFloat64) {
    with(kSides, static_cast<double*>(nullptr));
  } else {
    with(kSides, static_cast<float*>(nullptr));
  }
}

}  // namespace sparse_autotune
