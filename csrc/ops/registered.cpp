#include "ops/registered.h"

#include <stdexcept>

#include "autotune/registry.h"
#include "ops/registered_variant.h"

namespace sparse_autotune {
namespace {

// A new kind of computation adds its function here.
const AnyVariant& made_of(const api::RegisteredVariant& facts) {
  for (const auto make : {&registered_product, &registered_attention}) {
    if (const AnyVariant* const variant = make(facts)) return *variant;
  }
  throw std::invalid_argument("no operator '" + facts.op + "' takes registered variants");
}

}  // namespace

namespace api {

void register_variant(RegisteredVariant variant) { add_variant(made_of(variant)); }

void unregister_variant(const std::string& name) { remove_variant(name); }

}  // namespace api
}  // namespace sparse_autotune
