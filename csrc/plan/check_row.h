// The rules of one block row, shared by the check on the host and the one on the device.
#pragma once

#include "host_device.h"
#include "plan/pattern.h"

namespace sparse_autotune {

struct RowCheck {
  uint32_t faults;
  int64_t blocks;  // none where a row pointer lies outside [0, nnzb]: no column may be read there
};

// What the row pointers tell.
template <typename Index>
SPARSE_AUTOTUNE_HOST_DEVICE inline RowCheck check_ends(const Index* crow, int64_t row,
                                                       int64_t block_rows, int64_t nnzb) {
  RowCheck result{0, 0};
  const int64_t begin = crow[row], end = crow[row + 1];
  if (row == 0 && begin != 0) result.faults |= kFirstNotZero;
  if (row == block_rows - 1 && end != nnzb) result.faults |= kLastNotNnzb;
  if (begin < 0 || end > nnzb || end < begin) {
    result.faults |= kNotMonotonic;
  } else {
    result.blocks = end - begin;
  }
  return result;
}

// `previous`: the column before in the row; -1: there is none.
SPARSE_AUTOTUNE_HOST_DEVICE inline uint32_t check_column(int64_t column, int64_t previous,
                                                         int64_t block_cols) {
  if (column < 0 || column >= block_cols) return kColumnOutOfRange;
  return column <= previous ? uint32_t{kColumnsUnsorted} : 0u;
}

template <typename Index>
RowCheck check_row(const Index* crow, const Index* col, int64_t row, int64_t block_rows,
                   int64_t block_cols, int64_t nnzb) {
  RowCheck result = check_ends(crow, row, block_rows, nnzb);
  const int64_t begin = crow[row];
  int64_t previous = -1;
  for (int64_t i = begin; i < begin + result.blocks; ++i) {
    const int64_t column = col[i];
    result.faults |= check_column(column, previous, block_cols);
    previous = column;
  }
  return result;
}

}  // namespace sparse_autotune
