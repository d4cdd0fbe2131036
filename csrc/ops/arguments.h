// The operators' arguments, as their schemas have them, and how they are looked at.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "calls/call.h"
#include "ops/torch_runtime.h"

namespace sparse_autotune {

struct MatmulArguments {
  Tensor crow_indices, col_indices, values;
  int64_t rows, cols;
  Tensor dense;
  std::optional<Tensor> bias;
  bool sparse_right, transpose;
  int64_t activation;
  bool frozen, allow_tf32, deterministic;
  std::optional<std::string> variant;

  // Whose dtype and device results and scratch have.
  const Tensor& operand() const { return values; }
};

struct SampledArguments {
  Tensor crow_indices, col_indices;
  int64_t rows, cols, block_m, block_k;
  Tensor x, y;
  bool allow_tf32, deterministic;
  std::optional<std::string> variant;

  const Tensor& operand() const { return x; }
};

TensorView view_of(const Tensor& tensor);

// Views of the arguments, which must outlive them; refuses calls that break a rule.
MatmulCall checked_call(const MatmulArguments& arguments);
SampledCall checked_call(const SampledArguments& arguments);

// The same arguments with what `copies` names made contiguous; `c` of a product is its result.
MatmulArguments contiguous(MatmulArguments arguments, const Copies& copies);
SampledArguments contiguous(SampledArguments arguments, const Copies& copies);

}  // namespace sparse_autotune
