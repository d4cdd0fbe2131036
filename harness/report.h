// What is said about one product: a table for people, or a line of JSON.
#pragma once

#include <string>
#include <vector>

#include "harness/arguments.h"
#include "sparse_autotune.h"

namespace harness {

struct Row {
  std::string name;  // of the variant
  std::string family() const { return name.substr(0, name.find('/')); }
  bool legal = false;
  double error = 0;      // of our own check; above 1 it is wrong
  double median_us = 0;  // 0: not timed
  std::string reason;    // why it did not run, or left early
};

struct Report {
  Point point;
  std::string pattern, device, winner;
  int64_t nnzb = 0;
  double density = 0;
  bool cached = false;  // the winner was remembered
  double nnz_flops = 0, dense_flops = 0, limit_us = 0;
  std::vector<Row> rows;
  double dense_us = 0;  // 0: not measured
  std::string dense_by;
  double call_us = 0;  // of one more product like it: on a GPU the host's time alone
  bool is_cuda = false;

  bool is_right() const;
  double winner_us() const;
};

// One row a family: its fastest, or why none of it ran.
void print_table(const Report& report);
// For a grid: the winner and the dense product alone, in columns that a line before them names.
void print_heading();
void print_line(const Report& report);
void print_json(const Report& report);

}  // namespace harness
