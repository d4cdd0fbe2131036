// A C program's description of a product, checked and read as a call.
#pragma once

#include <array>
#include <optional>
#include <string>

#include "c_api/handles.h"
#include "calls/call.h"

namespace sparse_autotune {

// A view that owns the sizes and strides that it points to.
struct DenseView {
  TensorView view;
  std::array<int64_t, 3> sizes{}, strides{};
  DenseView() = default;
  DenseView(const DenseView&) = delete;
  DenseView& operator=(const DenseView&) = delete;
};

// What both kinds of products come to.
struct CCall {
  NormalisedCall call;
  std::optional<std::string> variant;
  void* stream;
  void* workspace;
  int64_t workspace_bytes;
};

// Both refuse what breaks a rule.
CCall read_product(const sparse_autotune_pattern& pattern, const sparse_autotune_product* product);
CCall read_product(const sparse_autotune_pattern& pattern,
                   const sparse_autotune_sampled_product* product);

// A rule that holds for any address of elements.
void require_aligned(const void* address, int64_t item, const char* argument);
// The product of sizes, each at least 0, so that bytes of it and sums of a few cannot overflow.
int64_t bounded_product(const char* argument, std::initializer_list<int64_t> sizes);

}  // namespace sparse_autotune
