// What sums of products of a type are kept in.
#pragma once

namespace sparse_autotune {

template <typename T>
struct Accumulator {
  using Type = float;
};
template <>
struct Accumulator<double> {
  using Type = double;
};

}  // namespace sparse_autotune
