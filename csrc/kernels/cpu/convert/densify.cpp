// BSR to dense: a thread clears the rows of its block rows, which its caches hold then, and copies
// their blocks. A^T's wide blocks are copied as they lie, into columns that are cleared before.
#include "kernels/cpu/convert/layouts_of_a.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "kernels/cpu/convert/copy_lines.h"

namespace sparse_autotune {
namespace {

constexpr int64_t kGrainBytes = 64 << 10;  // less work than this is not worth another thread
constexpr int64_t kBytesOfALine = 32;      // of cleared memory: as long as one more line takes
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
    const int64_t rows = std::max<int64_t>(block_rows(p_), 1), row_bytes = bytes / rows;
    const int64_t lines = p_.nnzb * (as_stored ? p_.block_k : p_.block_m) / rows;
    const int64_t grain =
        ceil_div(kGrainBytes, std::max<int64_t>(row_bytes + lines * kBytesOfALine, 1));
    parallel_each(parallel, block_rows(p_), grain, [&](int64_t row) {
      if (as_stored) return copy_columns(row);
      std::memset(dst_ + row * row_bytes, 0, static_cast<size_t>(row_bytes));
      with_word(element_, [&]<typename T>(T*) { copy_rows<T>(row); });
    });
  }

 private:
  // Copied before they are used: what is written here might be any member.
  struct Blocks {
    const Index* columns;
    const Index* positions;
    const char* values;
    int64_t bytes, last;

    const char* at(int64_t i) const {
      return values + (positions == nullptr ? i : static_cast<int64_t>(positions[i])) * bytes;
    }
    void fetch(int64_t i) const { __builtin_prefetch(at(std::min<int64_t>(i, last))); }
  };
  Blocks blocks() const {
    return {columns_, positions_, values_, p_.block_m * p_.block_k * element_, p_.nnzb - 1};
  }

  // Blocks of one element.
  template <typename T>
  void copy_elements(int64_t row) const {
    const Blocks blocks = this->blocks();
    T* const to = reinterpret_cast<T*>(dst_) + row * p_.k;
    const int64_t begin = crow_[row], end = crow_[row + 1];
    if (blocks.positions == nullptr) {
      const T* const values = reinterpret_cast<const T*>(blocks.values);
#pragma GCC unroll 4
      for (int64_t i = begin; i < end; ++i) to[blocks.columns[i]] = values[i];
      return;
    }
    for (int64_t i = begin; i < end; ++i) {
      blocks.fetch(i + kAhead);
      to[blocks.columns[i]] = *reinterpret_cast<const T*>(blocks.at(i));
    }
  }

  // The rows from `first` on of the block row's, `count`. T has an element's size.
  template <typename T>
  void copy_rows(int64_t row, int64_t first, int64_t count) const {
    const Blocks blocks = this->blocks();
    const int64_t rows = p_.block_m, columns = p_.block_k, stride = p_.k * element_;
    const int64_t bytes = columns * element_, begin = crow_[row], end = crow_[row + 1];
    char* const to = dst_ + (row * rows + first) * stride;
    if (!p_.transpose) {
      for (int64_t i = begin; i < end; ++i) {
        copy_lines(to + static_cast<int64_t>(blocks.columns[i]) * bytes, stride,
                   blocks.at(i) + first * bytes, bytes, count, bytes);
      }
      return;
    }
    for (int64_t i = begin; i < end; ++i) {
      blocks.fetch(i + kAhead);
      turn_block<T>(blocks.at(i) + first * element_, rows, count, columns,
                    to + static_cast<int64_t>(blocks.columns[i]) * bytes, stride);
    }
  }
  template <typename T>
  void copy_rows(int64_t row) const {
    if (p_.block_m * p_.block_k == 1) return copy_elements<T>(row);
    for (int64_t first = 0; first < p_.block_m; first += kLinesTogether) {
      copy_rows<T>(row, first, std::min(kLinesTogether, p_.block_m - first));
    }
  }

  void copy_columns(int64_t row) const {
    const int64_t bytes = p_.block_m * element_, stride = p_.m * element_;
    char* const to = dst_ + row * bytes;
    const Blocks blocks = this->blocks();
    const int64_t columns = p_.block_k, end = crow_[row + 1];
    for (int64_t i = crow_[row]; i < end; ++i) {
      copy_lines(to + static_cast<int64_t>(blocks.columns[i]) * columns * stride, stride,
                 blocks.at(i), bytes, columns, bytes);
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
