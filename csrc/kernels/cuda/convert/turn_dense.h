// Dense operands in another layout.
#pragma once

#include <cstdint>

#include "variant.h"

namespace sparse_autotune {

// A matrix of lines that lie together, `pitch` elements apart, in each matrix of a batch.
struct DenseLines {
  void* memory;
  int64_t pitch, batch_stride;
};

// Writes `lines` lines of `length` elements to `to` as they are, with zeros behind each up to
// `padded` elements; or, `turned`, as `length` lines of `lines` elements, likewise.
Status lay_dense_cuda(bool turned, int64_t lines, int64_t length, int64_t padded, int64_t batch,
                      int64_t element_bytes, const DenseLines& from, const DenseLines& to,
                      void* stream);

// The rows of a matrix, rows x columns in that layout, as lines, with zeros behind each.
inline Status lay_rows_cuda(Layout layout, int64_t rows, int64_t columns, int64_t batch,
                            int64_t element_bytes, const DenseLines& from, const DenseLines& to,
                            void* stream) {
  const bool turned = layout != Layout::kRowMajor;
  return lay_dense_cuda(turned, turned ? columns : rows, turned ? rows : columns, to.pitch, batch,
                        element_bytes, from, to, stream);
}

}  // namespace sparse_autotune
