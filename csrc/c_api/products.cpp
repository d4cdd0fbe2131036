// Products, and what they need.
#include "c_api/read_product.h"
#include "c_api/status.h"
#include "c_api/surroundings.h"
#include "calls/serve.h"

namespace sparse_autotune {
namespace {

void launch(const sparse_autotune_pattern& pattern, CCall call) {
  Surroundings around(pattern, call.stream);
  while_reading(pattern, call.stream, [&] {
    auto bound = bind_call(std::move(call.call), call.variant, around.caller(), pattern.plan.get());
    if (!bound) return;
    if (call.workspace == nullptr) return serve(*bound, call.variant);
    serve(*bound, call.variant, [&](const ScratchLayout& layout, const Variant& variant) {
      if (layout.bytes() > call.workspace_bytes) {
        throw Broken(SPARSE_AUTOTUNE_WORKSPACE_TOO_SMALL,
                     "product.workspace_bytes must be at least " + std::to_string(layout.bytes()) +
                         " for " + std::string(variant.name()) + ", got " +
                         std::to_string(call.workspace_bytes));
      }
      return call.workspace;
    });
  });
}

int64_t workspace_of(const sparse_autotune_pattern& pattern, CCall call) {
  if (call.call.is_empty() || pattern.nnzb == 0) return 0;
  Surroundings around(pattern, call.stream);
  int64_t bytes = 0;
  while_reading(pattern, call.stream, [&] {
    Bound bound = bind_for_questions(std::move(call.call), around.caller(), pattern.plan.get());
    bytes = scratch_bytes(bound, call.variant);
  });
  return bytes;
}

template <typename Product>
sparse_autotune_status launched(sparse_autotune_pattern* pattern, const Product* product) {
  return guarded_call([&] {
    const auto& p = checked(pattern, "pattern");
    launch(p, read_product(p, product));
  });
}

template <typename Product>
sparse_autotune_status workspace(sparse_autotune_pattern* pattern, const Product* product,
                                 int64_t* bytes) {
  return guarded_call([&] {
    const auto& p = checked(pattern, "pattern");
    checked(bytes, "bytes");
    *bytes = workspace_of(p, read_product(p, product));
  });
}

}  // namespace
}  // namespace sparse_autotune

using namespace sparse_autotune;

sparse_autotune_status sparse_autotune_matmul(sparse_autotune_pattern* pattern,
                                              const sparse_autotune_product* product) {
  return launched(pattern, product);
}

sparse_autotune_status sparse_autotune_matmul_workspace(sparse_autotune_pattern* pattern,
                                                        const sparse_autotune_product* product,
                                                        int64_t* bytes) {
  return workspace(pattern, product, bytes);
}

sparse_autotune_status sparse_autotune_sampled_matmul(
    sparse_autotune_pattern* pattern, const sparse_autotune_sampled_product* product) {
  return launched(pattern, product);
}

sparse_autotune_status sparse_autotune_sampled_matmul_workspace(
    sparse_autotune_pattern* pattern, const sparse_autotune_sampled_product* product,
    int64_t* bytes) {
  return workspace(pattern, product, bytes);
}
