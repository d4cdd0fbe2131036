// Orders of block rows that kernels can ask for: whole rows, or long ones cut into parts.
//
// An order depends on the indices alone. Its entries come longest first (but for small
// differences); behind them lies a CutRow for each row that was cut.
#pragma once

#include <cstdint>

#include "host_device.h"

namespace sparse_autotune {

// A block row, or a part of one, and its stored blocks, [begin, end).
struct alignas(16) OrderedRow {
  int32_t row, begin, end;
  int32_t slot;  // the part's number among the parts of all rows; -1: the row is whole
};

// A row that was cut: its parts, from left to right, have the slots first, first + 1, ...
struct alignas(16) CutRow {
  int32_t row, first, parts, unused;
};

// Orders by number: 0 is that of whole rows, the others cut rows of more than part_limit() blocks.
constexpr int kNoRowOrder = -1, kWholeRows = 0, kRowOrders = 10;

// Blocks in a part, at most: 2, 4, 8, ... 512.
constexpr int64_t part_limit(int order) { return int64_t{1} << order; }

// How many rows each order cuts, and into how many parts; none where the rows are not known.
struct RowCuts {
  int32_t rows[kRowOrders], parts[kRowOrders];
};

// Parts of a row that is cut differ in length by at most one block, the longer ones first.
SPARSE_AUTOTUNE_HOST_DEVICE constexpr int32_t parts_of(int32_t blocks, int32_t limit) {
  return blocks / limit + (blocks % limit != 0 ? 1 : 0);
}
SPARSE_AUTOTUNE_HOST_DEVICE constexpr int32_t part_begin(int32_t blocks, int32_t parts,
                                                         int32_t part) {
  const int32_t longer = blocks % parts;
  return blocks / parts * part + (part < longer ? part : longer);
}

}  // namespace sparse_autotune
