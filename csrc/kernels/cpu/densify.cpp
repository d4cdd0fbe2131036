// BSR to dense: a thread owns whole block rows; it clears one and copies its blocks' rows into it.
#include "kernels/cpu/densify.h"

#include <cstddef>
#include <cstring>

namespace sparse_autotune {
namespace {

constexpr int64_t kGrainBytes = 64 << 10;  // less work than this is not worth another thread

template <typename Index>
void densify(const Problem& p, const Launch& l, void* dst) {
  const auto* crow = static_cast<const Index*>(l.crow_indices);
  const auto* col = static_cast<const Index*>(l.col_indices);
  const auto* values = static_cast<const char*>(l.values);
  const int64_t row_bytes = p.block_k * size_of(p.dtype);
  const int64_t dense_row_bytes = row_bytes * block_cols(p);
  const int64_t block_row_bytes = dense_row_bytes * p.block_m;
  const int64_t grain = block_row_bytes == 0 ? 1 : ceil_div(kGrainBytes, block_row_bytes);

  parallel_for(l.parallel, 0, block_rows(p), grain, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      char* rows = static_cast<char*>(dst) + i * block_row_bytes;
      std::memset(rows, 0, static_cast<size_t>(block_row_bytes));
      for (int64_t position = crow[i]; position < crow[i + 1]; ++position) {
        const char* block = values + position * p.block_m * row_bytes;
        char* to = rows + static_cast<int64_t>(col[position]) * row_bytes;
        for (int64_t row = 0; row < p.block_m; ++row) {
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
