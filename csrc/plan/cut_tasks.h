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

// Pieces of a task where each takes as many as the next, wherever rows end.
SPARSE_AUTOTUNE_HOST_DEVICE constexpr int32_t even_limit(const TaskShape& shape, int64_t pieces) {
  const int64_t places = shape.places, most = shape.most();
  const int64_t rounds = (pieces + most * places - 1) / (most * places);
  return static_cast<int32_t>((pieces + rounds * places - 1) / (rounds * places));
}

// The cost of the rounds of such tasks, of pieces in so many strips: of those tasks that have a row
// more than the mean. Infinite where that is more than three stages hold.
SPARSE_AUTOTUNE_HOST_DEVICE constexpr int64_t even_cost(const TaskShape& shape, int64_t pieces,
                                                        int64_t strips) {
  const int64_t limit = even_limit(shape, pieces), tasks = (pieces + limit - 1) / limit;
  const int64_t rounds = (tasks + shape.places - 1) / shape.places;
  const int64_t further = (2 * strips * shape.row_units + tasks - 1) / tasks;
  if (limit + shape.row_units + further / 2 > 9) return INT64_MAX;
  return rounds * (task_cost(shape, static_cast<int32_t>(limit)) + further + 1);
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

// By the sizes of its groups, of which there are `groups`.
SPARSE_AUTOTUNE_HOST_DEVICE constexpr int32_t form_of(int32_t pieces, int32_t groups,
                                                      int32_t first) {
  if (groups <= 1) return pieces;
  if (groups > 2 || pieces < kSharePieces) return kFourSingle;
  return first == 1 ? kOneAndThree : first == 2 ? kTwoAndTwo : kThreeAndOne;
}

// What a consumer does of pieces whose units in the stage are known.
SPARSE_AUTOTUNE_HOST_DEVICE inline void describe_share(int32_t pieces, const uint8_t* row,
                                                       const uint8_t* column, TaskShare* share) {
  const auto joined = [&](int32_t i) {
    return row[i] == row[i - 1] && column[i] == column[i - 1] + 1;
  };
  int32_t groups = pieces > 0 ? 1 : 0, first = 1;
  for (int32_t i = 1; i < pieces; ++i) {
    if (!joined(i)) ++groups;
    if (groups == 1) ++first;
  }
  share->pieces = pieces;
  share->form = form_of(pieces, groups, first);
  const bool single = share->form == kFourSingle;
  for (int32_t group = 0, i = 0; group < kSharePieces && pieces > 0; ++group) {
    share->row[group] = row[i];
    share->column[group] = column[i];
    const int32_t last = pieces - 1;
    if (i < last) ++i;
    while (!single && i < last && joined(i)) ++i;
  }
}

// A task of up to eight pieces, or four of 128 rows; piece_at(i) gives them. Those of a row come
// together.
template <typename PieceAt>
SPARSE_AUTOTUNE_HOST_DEVICE void describe_task(const TaskShape& s, int32_t count,
                                               PieceAt&& piece_at, SampledTask* task) {
  // Strips of 128 rows are shared out by rows, lower ones by pieces.
  const bool by_rows = s.row_units == 2;
  const int32_t half = by_rows ? count : (count + 1) / 2;
  int32_t columns = 0, rows = 0, line[kTaskColumns];
  uint8_t row[kTaskColumns], column[kTaskColumns];
  for (int32_t i = 0; i < count; ++i) {
    const TaskPiece piece = piece_at(i);
    const int32_t c = piece.strip_row * s.row_units * kLinesOfUnit;
    if (rows == 0 || task->row[rows - 1] != c) task->row[rows++] = c;
    const int32_t b = (piece.block.column * s.across + piece.part) * kLinesOfUnit;
    int32_t at = 0;  // columns that rows share are copied once
    while (at < columns && line[at] != b) ++at;
    if (at == columns) line[columns++] = b;
    row[i] = static_cast<uint8_t>(rows - 1);
    column[i] = static_cast<uint8_t>(at);
    for (int32_t w = 0; w < 2; ++w) {
      if (by_rows || w == (i < half ? 0 : 1)) {
        task->share[w].place[by_rows || w == 0 ? i : i - half] =
            place_of(s, piece, by_rows ? w : 0);
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
    for (int32_t i = 0; i < count; ++i) {  // becomes where the consumer's lines begin
      row[i] = static_cast<uint8_t>(w == 0 ? columns + row[i] * s.row_units
                                           : row[i] + (by_rows ? 1 : 0));
    }
    const int32_t first = by_rows || w == 0 ? 0 : half;
    describe_share(by_rows || w == 0 ? half : count - half, row + first, column + first,
                   &task->share[w]);
  }
}

}  // namespace sparse_autotune
