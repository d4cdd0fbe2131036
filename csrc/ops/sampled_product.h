// The dense product behind sampled variants that multiply everything: some rows at a time.
#pragma once

#include <algorithm>

#include "operators/product/product.h"
#include "ops/dispatched.h"

namespace sparse_autotune {

// So many bytes of the dense product exist at a time, or one block row.
constexpr int64_t kProductBytes = int64_t{128} << 20;

inline int64_t product_block_rows(const Problem& p) {
  const int64_t block_row_bytes = p.block_m * p.k * size_of(p.dtype);
  return std::clamp<int64_t>(kProductBytes / std::max<int64_t>(block_row_bytes, 1), 1,
                             std::max<int64_t>(block_rows(p), 1));
}

inline int64_t product_bytes(const Problem& p) {
  return product_block_rows(p) * p.block_m * p.k * size_of(p.dtype);
}

// The half types' partial sums, one for each matrix of the batch, would be rounded to the type.
inline Support product_supports(const Problem& p) {
  if (p.batch > 1 && is_half(p.dtype)) {
    return Support::no("the sum over a batch would be rounded to the half type at each matrix");
  }
  return Support::yes();
}

// `gather(first block row, block rows, whether to add)` takes the stored blocks from the workspace,
// where the product is of type `dtype`, `step` block rows at a time.
template <typename Gather>
Status sample_product(const Problem& p, const Launch& l, DType dtype, int64_t step,
                      Gather&& gather) {
  const int64_t all = block_rows(p);
  for (int64_t first = 0; first < all; first += step) {
    const int64_t rows = std::min(step, all - first);
    for (int64_t batch = 0; batch < p.batch; ++batch) {
      Status status = mm_rows(p, l, batch, first * p.block_m, rows * p.block_m, dtype, l.workspace);
      if (status) status = gather(first, rows, batch > 0);
      if (!status) return status;
    }
  }
  return Status::ok();
}

template <typename Gather>
Status sample_product(const Problem& p, const Launch& l, Gather&& gather) {
  return sample_product(p, l, p.dtype, product_block_rows(p), gather);
}

}  // namespace sparse_autotune
