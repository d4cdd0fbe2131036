// The kernels of a sampled product's variant.
#pragma once

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

// By DType too.
template <typename Codes>
struct SampledKernels {
  Codes half, bfloat16;

  auto& of(const Problem& p) const { return (p.dtype == DType::kFloat16 ? half : bfloat16).of(p); }
};

}  // namespace sparse_autotune
