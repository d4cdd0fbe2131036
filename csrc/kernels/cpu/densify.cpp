// BSR to dense: a thread clears the rows of its block rows, which its caches hold then, and copies
// their blocks. A^T's wide blocks are copied as they lie, into columns that are cleared before.
#include "kernels/cpu/densify.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "kernels/cpu/copy_lines.h"

namespace sparse_autotune {
namespace {

constexpr int64_t kGrainBytes = 64 << 10;  // less work than this is not worth another thread
constexpr int64_t kLineBytes = 64;
constexpr int kAhead = 16;  // blocks of A^T: no hardware foresees where they lie

// `count` rows of a stored block of A^T, columns x rows. T has an element's size.
template <typename T>
void turn_block(const char* from, int64_t rows, int64_t count, int64_t columns, char* to,
                int64_t stride) {
  const T* source = reinterpret_cast<const T*>(from);
  for (int64_t r = 0; r < count; ++r, to += stride) {
    for (int64_t c = 0; c < columns; ++c) reinterpret_cast<T*>(to)[c] = source[c * rows + r];
  }
}

template <typename Index>
class Densifying {
 public:
  Densifying(const Problem& p, const Launch& l, void* dst)
      : p_(p),
        crow_(static_cast<const Index*>(l.crow_indices)),
        columns_(static_cast<const Index*>(l.col_indices)),
        positions_(static_cast<const Index*>(l.positions)),
        values_(static_cast<const char*>(l.values)),
        dst_(static_cast<char*>(dst)),
        element_(size_of(p.dtype)) {}

  void run(const Parallel& parallel) const {
    const bool as_stored = densified_layout(p_) == Layout::kColMajor;
    const int64_t bytes = p_.m * p_.k * element_;
    if (as_stored) {
      parallel_for(parallel, 0, bytes, kGrainBytes, [&](int64_t first, int64_t last) {
        std::memset(dst_ + first, 0, static_cast<size_t>(last - first));
      });
    }
    const int64_t row_bytes = bytes / std::max<int64_t>(block_rows(p_), 1);
    const int64_t grain = ceil_div(kGrainBytes, std::max<int64_t>(row_bytes, 1));
    parallel_for(parallel, 0, block_rows(p_), grain, [&](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; ++row) {
        if (as_stored) {
          copy_columns(row);
        } else {
          std::memset(dst_ + row * row_bytes, 0, static_cast<size_t>(row_bytes));
          copy_rows(row);
        }
      }
    });
  }

 private:
  const char* block_at(int64_t i) const {
    const int64_t position = positions_ == nullptr ? i : static_cast<int64_t>(positions_[i]);
    return values_ + position * p_.block_m * p_.block_k * element_;
  }

  // The rows from `first` on of the block row's, `count`. T has an element's size.
  template <typename T>
  void copy_rows(int64_t row, int64_t first, int64_t count) const {
    const int64_t rows = p_.block_m, columns = p_.block_k, stride = p_.k * element_;
    char* const to = dst_ + (row * rows + first) * stride;
    const bool single = rows * columns == 1;
    for (int64_t i = crow_[row]; i < crow_[row + 1]; ++i) {
      char* const corner = to + static_cast<int64_t>(columns_[i]) * columns * element_;
      if (p_.transpose) {
        __builtin_prefetch(block_at(std::min<int64_t>(i + kAhead, p_.nnzb - 1)));
      }
      if (single) {
        std::memcpy(corner, block_at(i), sizeof(T));
      } else if (p_.transpose) {
        turn_block<T>(block_at(i) + first * element_, rows, count, columns, corner, stride);
      } else {
        const int64_t bytes = columns * element_;
        copy_lines(corner, stride, block_at(i) + first * bytes, bytes, count, bytes);
      }
    }
  }
  void copy_rows(int64_t row) const {
    for (int64_t first = 0; first < p_.block_m; first += kLinesTogether) {
      const int64_t count = std::min(kLinesTogether, p_.block_m - first);
      if (element_ == 2) {
        copy_rows<uint16_t>(row, first, count);
      } else if (element_ == 4) {
        copy_rows<uint32_t>(row, first, count);
      } else {
        copy_rows<uint64_t>(row, first, count);
      }
    }
  }

  void copy_columns(int64_t row) const {
    const int64_t bytes = p_.block_m * element_, stride = p_.m * element_;
    char* const to = dst_ + row * bytes;
    for (int64_t i = crow_[row]; i < crow_[row + 1]; ++i) {
      char* const corner = to + static_cast<int64_t>(columns_[i]) * p_.block_k * stride;
      copy_lines(corner, stride, block_at(i), bytes, p_.block_k, bytes);
    }
  }

  const Problem& p_;
  const Index* const crow_;
  const Index* const columns_;
  const Index* const positions_;
  const char* const values_;
  char* const dst_;
  const int64_t element_;
};

}  // namespace

Layout densified_layout(const Problem& p) {
  return p.transpose && p.block_m * size_of(p.dtype) >= kLineBytes ? Layout::kColMajor
                                                                   : Layout::kRowMajor;
}

void densify_cpu(const Problem& p, const Launch& l, void* dst) {
  if (p.index_type == IndexType::kInt64) {
    Densifying<int64_t>(p, l, dst).run(l.parallel);
  } else {
    Densifying<int32_t>(p, l, dst).run(l.parallel);
  }
}

}  // namespace sparse_autotune
