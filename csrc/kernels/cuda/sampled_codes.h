// The kernels of a sampled product's variant.
#pragma once

#include "kernels/cuda/kernel_code.h"
#include "variant.h"

namespace sparse_autotune {

// By Layouts of C and B.
template <typename Arguments>
struct SampledCodes {
  KernelCode<Arguments>* of[2][2];
};

// By DType too.
template <typename Arguments>
struct SampledKernels {
  SampledCodes<Arguments> half, bfloat16;

  KernelCode<Arguments>& of(const Problem& p) const {
    const SampledCodes<Arguments>& codes = p.dtype == DType::kFloat16 ? half : bfloat16;
    return *codes.of[static_cast<int>(p.c_layout)][static_cast<int>(p.b_layout)];
  }
};

}  // namespace sparse_autotune
