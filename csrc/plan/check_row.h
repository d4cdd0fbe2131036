// The rules of one block row, shared by the check on the host and the one on the device.
#pragma once

#include "plan/pattern.h"

#ifdef __CUDACC__
#define SPARSE_AUTOTUNE_HOST_DEVICE_INLINE __host__ __device__ inline
#else
#define SPARSE_AUTOTUNE_HOST_DEVICE_INLINE inline
#endif

namespace sparse_autotune {

struct RowCheck {
  uint32_t faults;
  int64_t blocks;
};

// Reads no column index through a row pointer that lies outside [0, nnzb].
template <typename Index>
SPARSE_AUTOTUNE_HOST_DEVICE_INLINE RowCheck check_row(const Index* crow, const Index* col,
                                                      int64_t row, int64_t block_rows,
                                                      int64_t block_cols, int64_t nnzb) {
  RowCheck result{0, 0};
  const int64_t begin = crow[row], end = crow[row + 1];
  if (row == 0 && begin != 0) result.faults |= kFirstNotZero;
  if (row == block_rows - 1 && end != nnzb) result.faults |= kLastNotNnzb;
  if (end < begin) result.faults |= kNotMonotonic;
  if (begin < 0 || end > nnzb || end < begin) {
    if (begin < 0 || end > nnzb) result.faults |= kNotMonotonic;
    return result;
  }
  result.blocks = end - begin;
  int64_t previous = -1;
  for (int64_t p = begin; p < end; ++p) {
    const int64_t c = col[p];
    if (c < 0 || c >= block_cols) {
      result.faults |= kColumnOutOfRange;
    } else if (c <= previous) {
      result.faults |= kColumnsUnsorted;
    }
    previous = c;
  }
  return result;
}

}  // namespace sparse_autotune
