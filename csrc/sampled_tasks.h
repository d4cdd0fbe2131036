// Tasks of sampled products on Hopper's tensor cores: which lines of C and B a thread block
// multiplies, and where in values the sums belong.
//
// Blocks are cut into pieces: strips of 64 rows, or of 128 where block_m is a multiple of 128, by
// 64 columns. A task is a run of pieces of one strip of a block row, so that all of them share C's
// lines; where that makes more rounds of tasks than need be, some have pieces of several rows.
// Tasks depend on the indices and on the sides of the blocks alone.
#pragma once

#include <cstdint>

#include "host_device.h"
#include "row_orders.h"

namespace sparse_autotune {

constexpr int kLinesOfUnit = 64;  // what is copied at a time: so many lines of an operand
constexpr int kTaskColumns = 8, kTaskRows = 2, kSharePieces = 4;

// How blocks are cut, and for how many thread blocks at a time.
struct TaskShape {
  int32_t strips, across;  // of a block: strips, pieces of one
  int32_t row_units;       // of a strip
  int32_t places;          // thread blocks that run at a time

  bool operator==(const TaskShape&) const = default;
  SPARSE_AUTOTUNE_HOST_DEVICE constexpr int32_t most() const {  // pieces of a task
    return row_units == 2 ? kSharePieces : kTaskColumns;
  }
  // Whether what two rows have left may become one task.
  SPARSE_AUTOTUNE_HOST_DEVICE constexpr bool joins_rows() const {
    return row_units == 2 && strips == 1 && across == 2;
  }
};
constexpr TaskShape task_shape(int64_t block_m, int64_t block_k, int32_t places) {
  const int64_t units = block_m % (2 * kLinesOfUnit) == 0 ? 2 : 1;
  return {static_cast<int32_t>(block_m / (units * kLinesOfUnit)),
          static_cast<int32_t>(block_k / kLinesOfUnit), static_cast<int32_t>(units), places};
}

// In how many tasks a row of so many pieces is cut, whose sizes differ by at most one: as few as a
// limit to their mean allows, in quarters of a piece. Limits between whole numbers let sizes be
// such that rounds come out even.
SPARSE_AUTOTUNE_HOST_DEVICE constexpr int32_t tasks_of_row(int32_t pieces, int32_t limit) {
  return parts_of(4 * pieces, limit);
}

// The limits that are tried, from the first on. Where sums are to be cut into parts, as there is
// less than a block for every second thread block, a task is a strip of one block.
struct TaskLimits {
  int32_t first, last;
};
SPARSE_AUTOTUNE_HOST_DEVICE constexpr int64_t fewest_tasks(const TaskShape& shape, int64_t blocks) {
  return blocks * shape.strips * ((shape.across + shape.most() - 1) / shape.most());
}
SPARSE_AUTOTUNE_HOST_DEVICE constexpr bool are_few(const TaskShape& shape, int64_t blocks) {
  return 2 * fewest_tasks(shape, blocks) <= shape.places;
}
SPARSE_AUTOTUNE_HOST_DEVICE constexpr TaskLimits task_limits(const TaskShape& shape,
                                                             int64_t blocks) {
  const int32_t most = shape.most();
  if (are_few(shape, blocks)) {
    const int32_t limit = 4 * (shape.across < most ? shape.across : most);
    return {limit, limit};
  }
  // Four rounds come out even enough: a thread block's pieces are then the limit in quarters.
  const int64_t each =
      (blocks * shape.strips * shape.across + shape.places - 1) / int64_t{shape.places};
  return {each < 4 ? 4 : each < 4 * most ? static_cast<int32_t>(each) : 4 * most, 4 * most};
}

// Tasks of so many stored blocks in so many block rows, at most.
constexpr int64_t most_tasks(const TaskShape& shape, int64_t blocks, int64_t block_rows) {
  const int64_t pieces = blocks * shape.strips * shape.across, rows = block_rows * shape.strips;
  return 4 * pieces / task_limits(shape, blocks).first + (pieces < rows ? pieces : rows);
}

// What a consumer, one of two, does of a task. A consumer has 64 rows.
struct alignas(16) TaskShare {
  // Pieces side by side; kTwoRows: two pieces of one row, then two of another.
  int32_t form;
  // Units of the stage at which its lines of C, and its columns of B, begin, of each row.
  uint8_t row[kTaskRows], column[kTaskRows];
  int32_t unused[2];
  // Of each piece, its first element in values / 64.
  int32_t place[kSharePieces];
};
constexpr int32_t kTwoRows = kSharePieces + 1;

// A stage of the ring holds the columns' units, then the rows'.
struct alignas(16) SampledTask {
  int32_t columns, boxes, rows;  // units of B, in so many boxes; strips of C
  int32_t units;                 // of a stage
  int32_t box[kTaskColumns];     // a first line of B, below which the bits say: see box_of()
  int32_t row[kTaskRows];        // a strip's first line
  int32_t unused[2];
  TaskShare share[2];
};
static_assert(sizeof(TaskShare) == 32 && sizeof(SampledTask) == 128, "kernels read whole words");

// What is copied of B at once: one unit or two that are neighbours, to unit `unit` of the stage.
SPARSE_AUTOTUNE_HOST_DEVICE constexpr int32_t box_of(int32_t line, int32_t unit, bool wide) {
  return line | unit << 1 | (wide ? 1 : 0);
}
SPARSE_AUTOTUNE_HOST_DEVICE constexpr int32_t line_of_box(int32_t box) {
  return box & ~(kLinesOfUnit - 1);
}
SPARSE_AUTOTUNE_HOST_DEVICE constexpr int32_t unit_of_box(int32_t box) {
  return box >> 1 & (kTaskColumns - 1);
}
SPARSE_AUTOTUNE_HOST_DEVICE constexpr bool is_wide_box(int32_t box) { return (box & 1) != 0; }

// A table of tasks in device memory: behind its head lie the tasks. If one round is not enough, the
// largest come first.
struct alignas(16) TaskTable {
  int32_t count;
  int32_t limit;   // how rows were cut: see TaskLimits
  int32_t joined;  // tasks of two rows, before all others
  int32_t units;   // of a stage, the most of any task

  SPARSE_AUTOTUNE_HOST_DEVICE const SampledTask* tasks() const {
    return reinterpret_cast<const SampledTask*>(this + 1);
  }
  SPARSE_AUTOTUNE_HOST_DEVICE SampledTask* tasks() {
    return reinterpret_cast<SampledTask*>(this + 1);
  }
};

// Which task a thread block takes in a round: there and back, so that whoever had the largest gets
// the smallest next.
SPARSE_AUTOTUNE_HOST_DEVICE constexpr int32_t task_of_round(int32_t round, int32_t me,
                                                            int32_t blocks) {
  return round * blocks + (round % 2 == 0 ? me : blocks - 1 - me);
}

}  // namespace sparse_autotune
