// Variants that are registered while the process runs: operators of torch's dispatcher, by name.
//
// No torch: the bindings include this.
#pragma once

#include <functional>
#include <string>

#include "autotune/api.h"
#include "variant.h"

namespace sparse_autotune::api {

struct RegisteredVariant {
  std::string name;  // family/config
  // The operator's name with its namespace. It takes what its kind of computation is called with
  // (registered_products.cpp and registered_attention.cpp say which schema), writes the results
  // where they are wanted, and returns 0, or 1 where it failed, or 2 for want of memory.
  std::string dispatched;
  DeviceType device = DeviceType::kCpu;
  std::string op;  // what it computes: the name of one of the tuner's operators
  bool deterministic = true, multiplies_padding = false;
  bool captures = false;  // a CUDA graph can hold what it launches
  // Why it does not compute the problem of that text (see problem_text.h); empty: it does.
  std::function<std::string(const std::string& problem)> refusal;
  // What the operator's last failure in this thread was.
  std::function<std::string()> failure;
};

// From the next call on it races like the others. Throws std::invalid_argument if its name, or its
// family for another device or operation, is taken, or if there is no such operator.
SPARSE_AUTOTUNE_API void register_variant(RegisteredVariant variant);
// From the next call on it is not known any more; a call under way may still launch it.
SPARSE_AUTOTUNE_API void unregister_variant(const std::string& name);

}  // namespace sparse_autotune::api
