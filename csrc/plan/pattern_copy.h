// The indices of a pattern as they once were, or their digests, to tell whether they still are.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/pattern.h"
#include "variant.h"

namespace sparse_autotune {

class PatternCopy {
 public:
  PatternCopy() = default;  // of no pattern
  // Of a pattern on the host.
  PatternCopy(const PatternKey& key, const Parallel& parallel);

  bool empty() const { return crow_indices_.empty(); }
  int64_t bytes() const { return static_cast<int64_t>(crow_indices_.size() + col_indices_.size()); }
  // Whether the indices at the key's addresses are those that lay there.
  bool equals(const PatternKey& key, const Parallel& parallel) const;

 private:
  std::vector<char> crow_indices_, col_indices_;
};

}  // namespace sparse_autotune
