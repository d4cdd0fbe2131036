// The operands of one product, and an fp64 reference of it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "harness/arguments.h"
#include "harness/device.h"
#include "harness/pattern.h"

namespace harness {

struct PatternDeleter {
  void operator()(sparse_autotune_pattern* p) const { sparse_autotune_pattern_destroy(p); }
};

class Problem {
 public:
  Problem(const Device& device, const Point& point, Pattern pattern, uint64_t seed);

  const Point& point() const { return point_; }
  const Pattern& pattern() const { return pattern_; }
  sparse_autotune_pattern* handle() const { return handle_.get(); }
  // C = A @ B on the device.
  sparse_autotune_product product() const;

  // Every byte of the result set: NaN, in any type.
  void poison();
  // The largest |C - reference| as a share of what is allowed; infinity where an element is NaN.
  double error();

 private:
  // Of one block row: where its elements begin in C, what they are, and how far off they may be.
  struct Expected {
    int64_t first;
    std::vector<double> sum, allowed;
  };
  std::vector<int64_t> checked_rows() const;
  Expected expected_of(int64_t block_row) const;

  Point point_;
  Pattern pattern_;
  std::vector<double> values_, b_;  // as they are on the device
  std::vector<Expected> expected_;  // of the rows that are checked, since the first check
  std::unique_ptr<Buffer> device_values_, device_b_, device_c_;
  std::unique_ptr<sparse_autotune_pattern, PatternDeleter> handle_;
};

}  // namespace harness
