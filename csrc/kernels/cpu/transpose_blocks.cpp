// A thread owns neighbouring blocks of A^T; a block is turned in squares whose rows and columns are
// a cache line or less.
#include "kernels/cpu/transpose_blocks.h"

#include <algorithm>

#include "kernels/cpu/elements.h"

namespace sparse_autotune {
namespace {

constexpr int64_t kGrainBytes = 64 << 10;  // less work than this is not worth another thread
constexpr int64_t kSide = 8;

// `from` is rows x columns.
template <typename T>
void turn(const T* from, int64_t rows, int64_t columns, T* to) {
  for (int64_t r = 0; r < rows; r += kSide) {
    for (int64_t c = 0; c < columns; c += kSide) {
      if (r + kSide <= rows && c + kSide <= columns) {
        for (int64_t j = 0; j < kSide; ++j) {
          for (int64_t i = 0; i < kSide; ++i) {
            to[(c + j) * rows + r + i] = from[(r + i) * columns + c + j];
          }
        }
        continue;
      }
      for (int64_t j = c; j < std::min(c + kSide, columns); ++j) {
        for (int64_t i = r; i < std::min(r + kSide, rows); ++i) {
          to[j * rows + i] = from[i * columns + j];
        }
      }
    }
  }
}

// T has an element's size; its values are only moved.
template <typename T>
void turn_all(const Problem& p, const Launch& l, void* dst) {
  const int64_t elements = p.block_m * p.block_k;
  const int64_t grain = ceil_div(kGrainBytes, elements * static_cast<int64_t>(sizeof(T)));
  parallel_for(l.parallel, 0, p.nnzb, grain, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const int64_t position = load_index(l.positions, i, p.index_type);
      turn(static_cast<const T*>(l.values) + position * elements, p.block_k, p.block_m,
           static_cast<T*>(dst) + i * elements);
    }
  });
}

}  // namespace

void transpose_blocks_cpu(const Problem& p, const Launch& l, void* dst) {
  switch (size_of(p.dtype)) {
    case 2:
      return turn_all<uint16_t>(p, l, dst);
    case 4:
      return turn_all<uint32_t>(p, l, dst);
    default:
      return turn_all<uint64_t>(p, l, dst);
  }
}

}  // namespace sparse_autotune
