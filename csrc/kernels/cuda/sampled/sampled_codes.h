// The kernels of a sampled product's variant.
#pragma once

#include <string>

#include "kernels/cuda/host/kernel_code.h"
#include "operators/product/product.h"

namespace sparse_autotune {

// By Layouts of C and B.
template <typename Arguments>
struct SampledCodes {
  KernelCode<Arguments>* by_layouts[2][2];

  KernelCode<Arguments>& of(const Problem& p) const {
    return *by_layouts[static_cast<int>(p.c_layout)][static_cast<int>(p.b_layout)];
  }
};

// By the Layout that C and B share. Half of the kernels, each of which compiles for seconds: they
// differ only where C = A @ B was computed from a column-major B into a row-major C.
template <typename Arguments>
struct AlikeCodes {
  KernelCode<Arguments>* by_layout[2];

  KernelCode<Arguments>& of(const Problem& p) const {
    return *by_layout[static_cast<int>(p.c_layout)];
  }
};

inline Support lie_alike(const Problem& p) {
  if (p.c_layout == p.b_layout) return Support::yes();
  const bool rows = p.c_layout == Layout::kRowMajor;
  return Support::no(std::string("needs C and B of one layout, got C ") +
                     (rows ? "row-major and B column-major" : "column-major and B row-major"));
}

// By DType too.
template <typename Codes>
struct SampledKernels {
  Codes half, bfloat16;

  auto& of(const Problem& p) const { return (p.dtype == DType::kFloat16 ? half : bfloat16).of(p); }
};

}  // namespace sparse_autotune
