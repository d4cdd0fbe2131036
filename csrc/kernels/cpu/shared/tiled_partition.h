// How cpu_tiled divides a product among threads: by stored blocks, not by rows.
//
// A unit is a span of rows of one block row. Units lie on a line, each as long as its row has
// blocks, plus one; the line is cut into equal parts and a unit belongs to the part in which it
// starts. Every output element is thus computed by one thread, in the order of its blocks, whatever
// the number of threads: results do not depend on it.
#pragma once

#include <algorithm>
#include <atomic>

#include "kernels/cpu/microkernels/tiled.h"

namespace sparse_autotune::cpu_tiled {

// Where part `part` of `parts` begins, in two steps, so that no product of large numbers overflows.
inline int64_t part_begin(int64_t total, int64_t parts, int64_t part) {
  return total / parts * part + total % parts * part / parts;
}

// Several a slot: cores of one machine differ, and the faster ones take more.
inline int64_t parts_of(int64_t slots) { return slots == 1 ? 1 : slots * 8; }

// Calls visit(slot, part) for each part: slots take parts until none is left.
template <typename Visit>
void for_each_part(const Parallel& parallel, int64_t slots, int64_t parts, Visit&& visit) {
  std::atomic<int64_t> next{0};
  parallel_each(parallel, slots, 1, [&](int64_t slot) {
    for (int64_t part = next++; part < parts; part = next++) visit(slot, part);
  });
}

// The last of `rows` that starts at or before `at`; start(row) does not descend, start(0) is 0.
template <typename Start>
int64_t row_at(int64_t rows, int64_t at, Start&& start) {
  int64_t low = 0, high = rows;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (start(middle) <= at ? low : high) = middle;
  }
  return low;
}

class Partition {
 public:
  // `spans` units per block row; the line is repeated `copies` times (column panels, batches).
  Partition(Indices crow_indices, int64_t rows, int64_t spans, int64_t copies, int64_t parts)
      : crow_(crow_indices),
        rows_(rows),
        spans_(spans),
        length_((crow_indices[rows] + rows) * spans),
        copies_(copies),
        parts_(parts) {}

  // Calls visit(copy, block_row, span) for every unit of the part.
  template <typename Visit>
  void for_each_unit(int64_t part, Visit&& visit) const {
    const int64_t begin = boundary(part), end = boundary(part + 1);
    if (begin >= end) return;
    for (int64_t copy = begin / length_; copy < copies_ && copy * length_ < end; ++copy) {
      visit_part(copy, std::max<int64_t>(begin - copy * length_, 0),
                 std::min(end - copy * length_, length_), visit);
    }
  }

 private:
  int64_t boundary(int64_t part) const { return part_begin(length_ * copies_, parts_, part); }
  int64_t start(int64_t row) const { return (crow_[row] + row) * spans_; }

  template <typename Visit>
  void visit_part(int64_t copy, int64_t begin, int64_t end, Visit& visit) const {
    const int64_t first = row_at(rows_, begin, [&](int64_t row) { return start(row); });
    for (int64_t row = first; row < rows_; ++row) {
      const int64_t length = crow_[row + 1] - crow_[row] + 1;
      int64_t at = start(row);
      if (at >= end) return;
      for (int64_t span = 0; span < spans_; ++span, at += length) {
        if (at >= end) return;
        if (at >= begin) visit(copy, row, span);
      }
    }
  }

  Indices crow_;
  int64_t rows_, spans_, length_, copies_, parts_;
};

}  // namespace sparse_autotune::cpu_tiled
