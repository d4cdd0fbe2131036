// How rows of pieces are cut into tasks, and what a task says: the same on host and device.
#pragma once

#include <cstdint>

#include "host_device.h"
#include "sampled_tasks.h"

namespace sparse_autotune {

// How many tasks there are of each size, in pieces.
struct TaskSizes {
  int32_t count[kTaskColumns + 1];

  SPARSE_AUTOTUNE_HOST_DEVICE constexpr int32_t all() const {
    int32_t sum = 0;
    for (const int32_t of_size : count) sum += of_size;
    return sum;
  }
  SPARSE_AUTOTUNE_HOST_DEVICE constexpr int32_t largest() const {
    int32_t size = kTaskColumns;
    while (size > 0 && count[size] == 0) --size;
    return size;
  }
  // Of task `number`, the largest first.
  SPARSE_AUTOTUNE_HOST_DEVICE constexpr int32_t size_of(int32_t number) const {
    int32_t size = kTaskColumns;
    for (int32_t before = count[size]; before <= number && size > 1; before += count[size]) --size;
    return size;
  }
};

// The time of a task, in units that are copied in every step: that is what bounds tasks, besides
// what comes before and after the steps.
SPARSE_AUTOTUNE_HOST_DEVICE constexpr int32_t task_cost(const TaskShape& shape, int32_t pieces) {
  return pieces + shape.row_units + 1;
}

// The cost of all tasks that a thread block takes.
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

// A piece: its strip, numbered through all block rows; its block; its place from left to right.
struct TaskPiece {
  int32_t strip_row;
  StoredBlock block;
  int32_t part;
};

// In units of 64 elements.
SPARSE_AUTOTUNE_HOST_DEVICE constexpr int32_t place_of(const TaskShape& s, const TaskPiece& piece,
                                                       int32_t consumer) {
  const int32_t strip = piece.block.number * s.strips + piece.strip_row % s.strips;
  const int32_t line = strip * s.row_units * kLinesOfUnit + consumer * kLinesOfUnit;
  return line * s.across + piece.part;
}

// A task of pieces of one strip or, with strips of 128 rows, of two blocks; piece_at(i) gives them.
template <typename PieceAt>
SPARSE_AUTOTUNE_HOST_DEVICE void describe_task(const TaskShape& s, int32_t count,
                                               PieceAt&& piece_at, SampledTask* task) {
  *task = {};  // kernels read whole words
  // Strips of 128 rows are shared out by rows, lower ones by pieces.
  const bool by_rows = s.row_units == 2;
  const int32_t half = by_rows ? count : (count + 1) / 2;
  int32_t columns = 0, rows = 0, line[kTaskColumns], column[kTaskColumns];
  for (int32_t i = 0; i < count; ++i) {
    const TaskPiece piece = piece_at(i);
    const int32_t c = piece.strip_row * s.row_units * kLinesOfUnit;
    if (rows == 0 || task->row[rows - 1] != c) task->row[rows++] = c;
    const int32_t b = (piece.block.column * s.across + piece.part) * kLinesOfUnit;
    int32_t& at = column[i] = rows == 2 ? 0 : columns;  // columns that rows share are copied once
    while (at < columns && line[at] != b) ++at;
    if (at == columns) line[columns++] = b;
    for (int32_t w = 0; w < 2; ++w) {
      const int32_t own = w == 0 || by_rows ? i : i - half;
      if (by_rows || w == (i < half ? 0 : 1)) {
        task->share[w].place[own] = place_of(s, piece, by_rows ? w : 0);
      }
    }
  }
  int32_t boxes = 0;
  for (int32_t i = 0; i < columns; ++i) {
    const bool wide = i + 1 < columns && line[i + 1] == line[i] + kLinesOfUnit;
    task->box[boxes++] = box_of(line[i], i, wide);
    if (wide) ++i;
  }
  task->columns = columns;
  task->boxes = boxes;
  task->rows = rows;
  task->units = columns + rows * s.row_units;
  for (int32_t w = 0; w < 2; ++w) {
    TaskShare& share = task->share[w];
    share.form = rows == 2 ? kTwoRows : by_rows || w == 0 ? half : count - half;
    for (int32_t i = 0; i < kTaskRows; ++i) {
      const int32_t row = rows == 2 ? i : 0;
      share.row[i] = static_cast<uint8_t>(columns + row * s.row_units + (by_rows ? w : 0));
      share.column[i] = static_cast<uint8_t>(rows == 2           ? column[2 * i]
                                             : by_rows || w == 0 ? 0
                                                                 : half);
    }
  }
}

}  // namespace sparse_autotune
