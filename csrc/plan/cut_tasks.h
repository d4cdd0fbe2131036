// How rows of pieces are cut into tasks, and what a task says: the same on host and device.
#pragma once

#include <cstdint>

#include "host_device.h"
#include "row_orders.h"
#include "sampled_tasks.h"

namespace sparse_autotune {

// How many tasks there are of each size, in pieces. A row is cut into as few as a limit allows
// (parts_of), whose sizes differ by at most one.
struct TaskSizes {
  int32_t count[kTaskColumns + 1];

  SPARSE_AUTOTUNE_HOST_DEVICE constexpr int32_t all() const {
    int32_t sum = 0;
    for (const int32_t of_size : count) sum += of_size;
    return sum;
  }
  // Of task `number`, the largest first.
  SPARSE_AUTOTUNE_HOST_DEVICE constexpr int32_t size_of(int32_t number) const {
    int32_t size = kTaskColumns;
    for (int32_t before = count[size]; before <= number && size > 1; before += count[size]) --size;
    return size;
  }
};

// The time of a task, in halves of what copying a unit takes in every step: that is what bounds
// tasks, besides what comes before and after the steps.
SPARSE_AUTOTUNE_HOST_DEVICE constexpr int32_t task_cost(const TaskShape& shape, int32_t pieces) {
  return 2 * (pieces + shape.row_units) + 1;
}

// The same of all tasks that a thread block takes.
SPARSE_AUTOTUNE_HOST_DEVICE constexpr int64_t cost_of_place(const TaskShape& shape,
                                                            const TaskSizes& sizes, int32_t me) {
  const int32_t all = sizes.all();
  int64_t cost = 0;
  for (int32_t round = 0; round * shape.places < all; ++round) {
    const int32_t number = task_of_round(round, me, shape.places);
    if (number < all) cost += task_cost(shape, sizes.size_of(number));
  }
  return cost;
}

// A stored block: where it lies in values, and its block column.
struct StoredBlock {
  int32_t number, column;
};

SPARSE_AUTOTUNE_HOST_DEVICE constexpr int32_t place_of(const TaskShape& s, int32_t number,
                                                       int32_t strip, int32_t part,
                                                       int32_t consumer) {
  const int32_t lines = s.row_units * kLinesOfUnit;
  const int32_t line = (number * s.strips + strip) * lines +
                       (s.row_units == 2 ? consumer * kLinesOfUnit : 0);
  return line * s.across + part;
}

// Pieces [first, first + count) of a strip of a block row. block_at(i): the row's block i.
template <typename BlockAt>
SPARSE_AUTOTUNE_HOST_DEVICE void describe_run(const TaskShape& s, int32_t strip_row, int32_t first,
                                              int32_t count, BlockAt&& block_at,
                                              SampledTask* task) {
  task->columns = count;
  task->rows = 1;
  task->row[0] = strip_row * s.row_units * kLinesOfUnit;
  task->units = count + s.row_units;
  // Strips of 128 rows are shared out by rows, lower ones by pieces.
  const bool by_rows = s.row_units == 2;
  const int32_t half = by_rows ? count : (count + 1) / 2;
  for (int32_t w = 0; w < 2; ++w) {
    TaskShare& share = task->share[w];
    share.form = by_rows || w == 0 ? half : count - half;
    share.row[0] = share.row[1] = static_cast<uint8_t>(count + (by_rows ? w : 0));
    share.column[0] = share.column[1] = static_cast<uint8_t>(by_rows || w == 0 ? 0 : half);
  }
  uint32_t wide = 0;
  int32_t before = -1;
  for (int32_t i = 0; i < count; ++i) {
    const int32_t piece = first + i, part = piece % s.across;
    const StoredBlock block = block_at(piece / s.across);
    const int32_t column = (block.column * s.across + part) * kLinesOfUnit;
    task->column[i] = column;
    // Two units that are neighbours in B are copied together.
    const bool taken = i > 1 && (wide >> (i - 2) & 1u) != 0;
    if (i > 0 && !taken && column == before + kLinesOfUnit) wide |= 1u << (i - 1);
    before = column;
    const int32_t strip = strip_row % s.strips;
    if (by_rows) {
      task->share[0].place[i] = place_of(s, block.number, strip, part, 0);
      task->share[1].place[i] = place_of(s, block.number, strip, part, 1);
    } else {
      task->share[i < half ? 0 : 1].place[i < half ? i : i - half] =
          place_of(s, block.number, strip, part, 0);
    }
  }
  task->wide = wide;
}

// Two blocks of 128 in two block rows; where they share their column it is copied once.
SPARSE_AUTOTUNE_HOST_DEVICE inline void describe_pair(const TaskShape& s, const int32_t (&row)[2],
                                                      const StoredBlock (&block)[2],
                                                      SampledTask* task) {
  const bool shared = block[0].column == block[1].column;
  task->columns = shared ? 2 : 4;
  task->rows = 2;
  task->units = task->columns + 2 * s.row_units;
  task->wide = shared ? 1u : 5u;
  for (int32_t i = 0; i < 2; ++i) {
    task->row[i] = row[i] * s.row_units * kLinesOfUnit;
    for (int32_t part = 0; part < 2; ++part) {
      task->column[2 * i + part] = (block[i].column * s.across + part) * kLinesOfUnit;
      for (int32_t w = 0; w < 2; ++w) {
        task->share[w].place[2 * i + part] = place_of(s, block[i].number, 0, part, w);
      }
    }
    for (int32_t w = 0; w < 2; ++w) {
      TaskShare& share = task->share[w];
      share.form = kTwoRows;
      share.row[i] = static_cast<uint8_t>(task->columns + i * s.row_units + w);
      share.column[i] = static_cast<uint8_t>(shared ? 0 : 2 * i);
    }
  }
}

}  // namespace sparse_autotune
