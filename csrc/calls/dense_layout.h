// How strided memory reads: as a row-major or column-major matrix, and dimensions as one.
#pragma once

#include <cstdint>
#include <optional>

#include "operators/product/product.h"

namespace sparse_autotune {

struct DenseLayout {
  Layout layout;
  int64_t leading;  // elements between rows (row-major) or columns
};

// A rows x cols matrix with free strides, if its rows or its columns are contiguous.
inline std::optional<DenseLayout> dense_layout(int64_t rows, int64_t cols, int64_t row_stride,
                                               int64_t col_stride) {
  if (rows == 0 || cols == 0) return DenseLayout{Layout::kRowMajor, cols};  // nothing is read
  const bool row_major = (cols == 1 || col_stride == 1) && (rows == 1 || row_stride >= cols);
  const bool col_major = (rows == 1 || row_stride == 1) && (cols == 1 || col_stride >= rows);
  // A single column is read along its length: column-major, whatever its other stride says.
  if (col_major && (cols == 1 || !row_major)) {
    return DenseLayout{Layout::kColMajor, cols == 1 ? rows : col_stride};
  }
  if (row_major) return DenseLayout{Layout::kRowMajor, rows == 1 ? cols : row_stride};
  return std::nullopt;
}

// Problem::*_alignment for that address and those strides in elements of `item` bytes.
inline uint8_t alignment_of(const void* pointer, int64_t leading, int64_t batch_stride,
                            int64_t item) {
  const uint64_t bits = reinterpret_cast<uintptr_t>(pointer) |
                        static_cast<uint64_t>(leading * item) |
                        static_cast<uint64_t>(batch_stride * item) | 16u;
  return static_cast<uint8_t>(bits & (~bits + 1));
}

// What a problem says of two dense matrices, whose batch strides it has.
inline void set_layouts(Problem* p, const DenseLayout& b, const DenseLayout& c) {
  p->b_layout = b.layout;
  p->ldb = b.leading;
  p->c_layout = c.layout;
  p->ldc = c.leading;
}
inline void set_alignments(Problem* p, const void* values, const void* b, const void* c) {
  const int64_t item = size_of(p->dtype);
  p->values_alignment = alignment_of(values, 0, 0, item);
  p->b_alignment = alignment_of(b, p->ldb, p->b_batch_stride, item);
  p->c_alignment = alignment_of(c, p->ldc, p->c_batch_stride, item);
}

// Strides of the two dense operands over one more dimension.
struct Step {
  int64_t size, b, c;
};

// Folds `outer` into `inner` where both operands walk it as one dimension.
inline bool fold(Step& inner, const Step& outer) {
  if (outer.size == 1) return true;
  if (inner.size == 1) {
    inner = outer;
    return true;
  }
  if (outer.b != inner.b * inner.size || outer.c != inner.c * inner.size) return false;
  inner.size *= outer.size;
  return true;
}

}  // namespace sparse_autotune
