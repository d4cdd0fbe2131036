// What the user asks for on the command line.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "sparse_autotune.h"

namespace harness {

// One sentence for people.
class BadArgument : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// One product: C (m x n) = A (m x k, block-sparse) @ B (k x n).
struct Point {
  int64_t m = 1024, k = 1024, n = 1024;
  int64_t block = 64;
  double sparsity = 0.875;
  sparse_autotune_dtype dtype = SPARSE_AUTOTUNE_FLOAT32;
};

struct Arguments {
  std::vector<Point> points;  // one, or with --grid all combinations
  bool grid = false;
  bool cuda = false;
  int32_t ordinal = 0;
  int32_t threads = 0;
  std::string pattern = "uniform";
  std::string variants;  // comma-separated; empty: all
  bool json = false;
  bool help = false;
  bool dense = true;
  uint64_t seed = 0;
  double budget_s = 0;
  std::string cache_directory, torch_version;  // empty: the default
};

extern const char* const kUsage;

// Throws BadArgument.
Arguments parse(int count, const char* const* words);

const char* name_of(sparse_autotune_dtype dtype);

}  // namespace harness
