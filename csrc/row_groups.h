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
// Behind them those of as many rows that share many columns, wherever in a window of kMatchWindow
// rows they lie. A window's last group may have fewer.
constexpr int kAllGroupings = 2 * kGroupings, kMatchWindow = 256;
constexpr int matched(int grouping) { return kGroupings + grouping; }
constexpr bool is_matched(int grouping) { return grouping >= kGroupings; }
constexpr int kMatchedPairs = matched(0);
constexpr int group_rows(int grouping) { return 2 << grouping % kGroupings; }
// That of groups of so many neighbours.
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

// A grouping, in device memory.
struct RowGroups {
  // Of each group its number (`row`) and its columns, [begin, end); those of most columns first.
  const OrderedRow* groups;
  const GroupColumn* columns;
  // Of a matched one, group_rows() for each group by its number; -1 where it has fewer.
  const int32_t* rows;
};

}  // namespace sparse_autotune
