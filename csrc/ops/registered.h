// Variants that are registered while the process runs: operators of torch's dispatcher, by name.
//
// No torch: the bindings include this.
#pragma once

#include <functional>
#include <string>

#include "autotune/api.h"
#include "operators/product/product.h"

namespace sparse_autotune::api {

struct RegisteredVariant {
  std::string name;  // family/config
  // The operator's name with its namespace. Of a product
  //   (Tensor crow_indices, Tensor col_indices, Tensor values, Tensor b, Tensor(a!) out,
  //    Tensor? bias, Tensor? positions, int activation, bool transpose) -> int
  // for one matrix of the batch; `values` are the blocks of op(A), whose block i is number
  // positions[i]. Of a sampled product the same without the last four, with C as `values` and the
  // blocks as `out`. Returns 0, or 1 where it failed, or 2 for want of memory.
  std::string dispatched;
  DeviceType device = DeviceType::kCpu;
  Op op = Op::kMatmul;
  bool deterministic = true, multiplies_padding = false;
  bool captures = false;  // a CUDA graph can hold what it launches
  // Why it does not compute the problem of that text (see problem_text.h); empty: it does.
  std::function<std::string(const std::string& problem)> refusal;
  // What the operator's last failure in this thread was.
  std::function<std::string()> failure;
};

// From the next call on it races like the others. Throws std::invalid_argument if its name, or its
// family for another device or operation, is taken.
SPARSE_AUTOTUNE_API void register_variant(RegisteredVariant variant);
// From the next call on it is not known any more; a call under way may still launch it.
SPARSE_AUTOTUNE_API void unregister_variant(const std::string& name);

}  // namespace sparse_autotune::api
