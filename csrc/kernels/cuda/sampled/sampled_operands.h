// What sampled products by TMA share on the host's side: what TMA asks of their operands and how it
// sees them, and a variant's kernels. Host code.
#pragma once

#include <algorithm>

#include "kernels/cuda/host/kernel_code.h"
#include "kernels/cuda/host/requirements.h"
#include "kernels/cuda/host/tensor_map.h"
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

// `most`: the largest number that the kernel counts to.
inline Support sampled_by_tma(const Problem& p, int64_t most) {
  if (p.nnzb == 0 || p.n == 0) return Support::no("there is nothing to sum up");
  if (Support s = all_by_16(p); !s) return s;
  return tma_reaches(p, std::max(p.batch, most));
}

// C's rows or B's columns, as boxes of `box` lines, a multiple of 64, by 64 terms.
inline Status map_sampled_c(const Problem& p, const Launch& l, uint32_t box, CUtensorMap* to) {
  if (p.c_layout == Layout::kRowMajor) return make_tensor_map(tensor_of_c(p, l.c, 64, box), to);
  return make_tensor_map(in_columns_of_64(tensor_of_c(p, l.c, 64, 64), box), to);
}
inline Status map_sampled_b(const Problem& p, const Launch& l, uint32_t box, CUtensorMap* to) {
  if (p.b_layout == Layout::kRowMajor) return make_tensor_map(tensor_of_b(p, l.b, 64, box), to);
  return make_tensor_map(in_columns_of_64(tensor_of_b(p, l.b, 64, 64), box), to);
}

}  // namespace sparse_autotune
