// From an operator's tensors to the torch-free Problem and Launch.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ops/torch_runtime.h"
#include "plan/pattern.h"
#include "variant.h"

namespace sparse_autotune {

// The arguments that all product operators share, as their schema has them.
struct MatmulArguments {
  Tensor crow_indices, col_indices, values;
  int64_t rows, cols;
  Tensor dense;
  std::optional<Tensor> bias;
  bool sparse_right, transpose;
  int64_t activation;
  bool frozen, allow_tf32, deterministic;
  std::optional<std::string> variant;
};

// The product in normalised form. `problem.longest_row` and `launch.device` are still open.
struct Product {
  Problem problem{};
  Launch launch;
  PatternKey pattern{};
  std::vector<Tensor> kept_alive;

  // Leading dimensions of `dense` that no stride folds into n or the batch: one launch for each.
  struct Outer {
    int64_t size, b_stride, c_stride;
  };
  std::vector<Outer> outer;
};

// Raises std::runtime_error for whatever would touch memory it must not. Python explains user
// errors (checks.py); here only what protects memory is repeated.
[[noreturn]] void refuse(const std::string& text);

// Sizes of the result as the user sees it.
std::vector<int64_t> result_sizes(const MatmulArguments& arguments);

// Raises where `out`, of those sizes, would not hold the result or overlaps an input or itself.
void check_out(const MatmulArguments& arguments, const Tensor& out,
               const std::vector<int64_t>& sizes);

// `result` has result_sizes(); its strides are free. nullopt: a layout that no kernel writes
// (neither rows nor columns contiguous), the caller goes through a contiguous one.
std::optional<Product> bind_product(const MatmulArguments& arguments, const Tensor& result);

}  // namespace sparse_autotune
