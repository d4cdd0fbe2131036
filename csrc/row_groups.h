// Groups of block rows, and the block columns that rows of a group share.
//
// A kernel whose thread block owns a whole group loads each of B's tiles once for all rows that
// need it. A grouping depends on the indices alone.
#pragma once

#include <cstdint>

#include "row_orders.h"

namespace sparse_autotune {

// A block column in which at least one row of the group stores a block: bit i of `rows` stands for
// the group's row i.
struct alignas(8) GroupColumn {
  int32_t column;
  uint32_t rows;
};

// Groupings by number: of 2, 4, 8, 16 or 32 neighbouring block rows. The last group may have fewer.
constexpr int kNoGrouping = -1, kGroupings = 5;
// One more: pairs of rows that share many columns, wherever in a window of kPairWindow rows both
// lie. A window's last row may be alone.
constexpr int kMatchedPairs = kGroupings, kAllGroupings = kGroupings + 1, kPairWindow = 256;
constexpr int group_rows(int grouping) { return 2 << grouping; }
// That of groups of so many rows.
constexpr int grouping_of(int rows) {
  int grouping = 0;
  while (group_rows(grouping) < rows) ++grouping;
  return grouping;
}

// How many columns the groups of neighbours have, all together and the longest; 0 where the rows
// are not known.
struct GroupCounts {
  int32_t columns[kGroupings], longest[kGroupings];
};

// A matched pair of block rows; `second` is -1 where a row is alone.
struct alignas(8) RowPair {
  int32_t first, second;
};

// A grouping, in device memory.
struct RowGroups {
  // Of each group its number (`row`) and its columns, [begin, end); those of most columns first.
  const OrderedRow* groups;
  const GroupColumn* columns;
  const RowPair* pairs;  // of kMatchedPairs: the rows of each group by its number
};

}  // namespace sparse_autotune
