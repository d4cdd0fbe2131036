// Tasks of sampled products: what one says is what its pieces are, and all pieces are in one.
#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "fakes.h"
#include "plan/cut_tasks.h"
#include "sampled_tasks.h"
#include "variant.h"

using namespace sparse_autotune;

namespace {

struct Pattern {
  int64_t block_m, block_k;
  std::vector<int32_t> crow, col;

  int32_t blocks(int32_t row) const { return crow[row + 1] - crow[row]; }
  int32_t rows() const { return static_cast<int32_t>(crow.size()) - 1; }
  int32_t row_of(int32_t block) const {
    int32_t row = 0;
    while (crow[row + 1] <= block) ++row;
    return row;
  }
};

Pattern random_pattern(int64_t block_m, int64_t block_k, int rows, int columns, double density,
                       uint32_t seed) {
  Pattern p{block_m, block_k, {0}, {}};
  std::mt19937 random(seed);
  for (int row = 0; row < rows; ++row) {
    const double share = row % 5 == 3 ? 0 : density * (1 + row % 3);
    for (int column = 0; column < columns; ++column) {
      if (random() < share * 4294967295.0) p.col.push_back(column);
    }
    p.crow.push_back(static_cast<int32_t>(p.col.size()));
  }
  return p;
}

// Where each 64 x 64 values are computed, by their first element / 64.
using Computed = std::map<int64_t, int>;

// Reads a task as a kernel does: copies, multiplies, stores.
void carry_out(const TaskShape& shape, const Pattern& p, const SampledTask& task, Computed* done) {
  CHECK(task.columns >= 1 && task.columns <= kTaskColumns);
  CHECK(task.rows >= 1 && task.rows <= kTaskRows);
  CHECK(task.units == task.columns + task.rows * shape.row_units);
  std::vector<int64_t> line(static_cast<size_t>(task.units), -1);  // of each unit of a stage
  for (int32_t i = 0; i < task.boxes; ++i) {
    const int32_t unit = unit_of_box(task.box[i]), first = line_of_box(task.box[i]);
    for (int32_t j = 0; j < (is_wide_box(task.box[i]) ? 2 : 1); ++j) {
      CHECK(unit + j < task.columns && line[unit + j] == -1);
      line[unit + j] = first + j * kLinesOfUnit;
    }
  }
  for (int32_t i = 0; i < task.rows; ++i) {
    for (int32_t unit = 0; unit < shape.row_units; ++unit) {
      line[task.columns + i * shape.row_units + unit] = task.row[i] + unit * kLinesOfUnit;
    }
  }
  for (const int64_t found : line) CHECK(found >= 0);
  for (const TaskShare& share : task.share) {
    const bool two = share.form == kTwoRows;
    const int32_t pieces = two ? kSharePieces : share.form;
    CHECK(pieces >= 0 && pieces <= kSharePieces);
    for (int32_t i = 0; i < pieces; ++i) {
      const int32_t row = two ? i / 2 : 0, column = share.column[row] + (two ? i % 2 : i);
      CHECK(column < task.columns);
      CHECK(share.row[row] >= task.columns && share.row[row] < task.units);
      const int64_t c = line[share.row[row]], b = line[column];
      const int64_t element = int64_t{share.place[i]} * kLinesOfUnit;
      const auto number = static_cast<int32_t>(element / (p.block_m * p.block_k));
      const int64_t inside = element % (p.block_m * p.block_k);
      CHECK(c == p.row_of(number) * p.block_m + inside / p.block_k);
      CHECK(b == p.col[number] * p.block_k + inside % p.block_k);
      ++(*done)[share.place[i]];
    }
  }
}

// Checks that these are all pieces of a pattern, once each.
void check_all(const Pattern& p, const Computed& done) {
  CHECK(done.size() == p.col.size() * (p.block_m / 64) * (p.block_k / 64));
  for (const auto& [place, times] : done) CHECK(times == 1);
}

constexpr int64_t kSides[][2] = {{64, 64},  {128, 128}, {64, 128},  {128, 64},  {192, 64},
                                 {64, 192}, {256, 128}, {128, 320}, {512, 256}, {320, 576}};

void pieces_of_rows_are_all_in_tasks() {
  for (const auto& [block_m, block_k] : kSides) {
    const TaskShape shape = task_shape(block_m, block_k, 132);
    for (const double density : {0.05, 0.3, 1.0}) {
      const Pattern p = random_pattern(block_m, block_k, 23, 19, density, 7);
      for (int32_t limit = 4; limit <= 4 * shape.most(); ++limit) {
        Computed done;
        int64_t tasks = 0;
        for (int32_t row = 0; row < p.rows(); ++row) {
          const int32_t pieces = p.blocks(row) * shape.across;
          const int32_t parts = pieces == 0 ? 0 : tasks_of_row(pieces, limit);
          for (int32_t i = 0; i < parts * shape.strips; ++i) {
            const int32_t part = i % parts, first = part_begin(pieces, parts, part);
            SampledTask task;
            describe_task(
                shape, part_begin(pieces, parts, part + 1) - first,
                [&](int32_t at) {
                  const int32_t number = p.crow[row] + (first + at) / shape.across;
                  return TaskPiece{row * shape.strips + i / parts,
                                   {number, p.col[number]},
                                   (first + at) % shape.across};
                },
                &task);
            CHECK(task.units <= 9);  // three stages
            carry_out(shape, p, task, &done);
            ++tasks;
          }
        }
        const auto blocks = static_cast<int64_t>(p.col.size());
        check_all(p, done);
        if (limit >= task_limits(shape, blocks).first) {
          CHECK(tasks <= most_tasks(shape, blocks, p.rows()));
        }
        if (are_few(shape, blocks) && limit == task_limits(shape, blocks).last) {
          CHECK(tasks <= fewest_tasks(shape, blocks));
        }
      }
    }
  }
}

void blocks_that_two_rows_have_left() {
  const TaskShape shape = task_shape(128, 128, 132);
  CHECK(shape.joins_rows() && !task_shape(128, 64, 132).joins_rows());
  const Pattern p{128, 128, {0, 2, 2, 5}, {3, 7, 1, 7, 8}};
  for (int32_t second = 2; second < 5; ++second) {
    SampledTask task;
    describe_task(
        shape, 4,
        [&](int32_t i) {
          const int32_t number = i < 2 ? 1 : second;
          return TaskPiece{i < 2 ? 0 : 2, {number, p.col[number]}, i % 2};
        },
        &task);
    Computed done;
    carry_out(shape, p, task, &done);
    CHECK(done.size() == 8 && task.columns == (second == 3 ? 2 : 4));
    for (const TaskShare& share : task.share) CHECK(share.form == kTwoRows);
  }
}

void limits_in_quarters() {
  CHECK(tasks_of_row(56, 16) == 14 && tasks_of_row(56, 14) == 16);  // sizes 4; 3 and 4
  CHECK(tasks_of_row(17, 17) == 4 && tasks_of_row(18, 17) == 5);
  for (int32_t limit = 4; limit <= 4 * kTaskColumns; ++limit) {
    for (int32_t pieces = 1; pieces < 100; ++pieces) {
      const int32_t tasks = tasks_of_row(pieces, limit);
      CHECK(4 * pieces <= tasks * limit && 4 * pieces > (tasks - 1) * limit);
    }
  }
}

void shares_come_out_even() {
  const TaskShape shape = task_shape(128, 128, 4);
  // Five tasks of four pieces, four of two: the larger ones first, there and back.
  TaskSizes sizes{};
  sizes.count[4] = 5;
  sizes.count[2] = 4;
  CHECK(sizes.all() == 9 && sizes.size_of(0) == 4 && sizes.size_of(4) == 4);
  CHECK(sizes.size_of(5) == 2 && sizes.size_of(8) == 2);
  const int32_t four = task_cost(shape, 4), two = task_cost(shape, 2);
  int64_t all = 0;
  for (int32_t me = 0; me < 4; ++me) all += cost_of_place(shape, sizes, me);
  CHECK(all == 5 * four + 4 * two);
  CHECK(cost_of_place(shape, sizes, 3) == 2 * four);
  CHECK(cost_of_place(shape, sizes, 0) == four + 2 * two);
  std::vector<int> taken(13);
  for (int32_t round = 0; round < 4; ++round) {
    for (int32_t me = 0; me < 4; ++me) {
      const int32_t number = task_of_round(round, me, 4);
      if (number < 13) ++taken[number];
    }
  }
  for (const int times : taken) CHECK(times == 1);
}

}  // namespace

int main() {
  pieces_of_rows_are_all_in_tasks();
  blocks_that_two_rows_have_left();
  limits_in_quarters();
  shares_come_out_even();
  std::printf("all passed\n");
}
