// BSR to dense: everything is cleared, then a thread copies the rows of its block rows' blocks.
#include "kernels/cpu/densify.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace sparse_autotune {
namespace {

constexpr int64_t kGrainBytes = 64 << 10;  // less work than this is not worth another thread

template <typename Index>
void densify(const Problem& p, const Launch& l, void* dst) {
  const auto* crow = static_cast<const Index*>(l.crow_indices);
  const auto* col = static_cast<const Index*>(l.col_indices);
  const auto* positions = static_cast<const Index*>(l.positions);
  const auto* values = static_cast<const char*>(l.values);
  const int64_t rows = p.transpose ? p.block_k : p.block_m;  // of a block as stored
  const int64_t row_bytes = (p.transpose ? p.block_m : p.block_k) * size_of(p.dtype);
  const int64_t dense_row_bytes = (p.transpose ? p.m : p.k) * size_of(p.dtype);
  // From one block row of op(A) to the next, and from one block column.
  const int64_t row_step = p.transpose ? row_bytes : rows * dense_row_bytes;
  const int64_t col_step = p.transpose ? rows * dense_row_bytes : row_bytes;

  const int64_t bytes = p.m * p.k * size_of(p.dtype);
  parallel_for(l.parallel, 0, bytes, kGrainBytes, [&](int64_t first, int64_t last) {
    std::memset(static_cast<char*>(dst) + first, 0, static_cast<size_t>(last - first));
  });
  const int64_t block_row_bytes = bytes / std::max<int64_t>(block_rows(p), 1);
  const int64_t grain = ceil_div(kGrainBytes, std::max<int64_t>(block_row_bytes, 1));
  parallel_for(l.parallel, 0, block_rows(p), grain, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      for (int64_t at = crow[i]; at < crow[i + 1]; ++at) {
        const int64_t position = positions == nullptr ? at : static_cast<int64_t>(positions[at]);
        const char* block = values + position * rows * row_bytes;
        char* to =
            static_cast<char*>(dst) + i * row_step + static_cast<int64_t>(col[at]) * col_step;
        for (int64_t row = 0; row < rows; ++row) {
          std::memcpy(to + row * dense_row_bytes, block + row * row_bytes,
                      static_cast<size_t>(row_bytes));
        }
      }
    }
  });
}

}  // namespace

void densify_cpu(const Problem& p, const Launch& l, void* dst) {
  if (p.index_type == IndexType::kInt64) {
    densify<int64_t>(p, l, dst);
  } else {
    densify<int32_t>(p, l, dst);
  }
}

}  // namespace sparse_autotune
