// What tells whether the indices of a pattern still are as they once were: of few a copy, of many
// digests.
#pragma once

#include <cstdint>
#include <vector>

#include "exported.h"
#include "plan/pattern.h"
#include "variant.h"

namespace sparse_autotune {

class PatternFingerprint {
 public:
  PatternFingerprint() = default;  // of no pattern
  // Of a pattern on the host.
  PatternFingerprint(const PatternKey& key, const Parallel& parallel);

  bool empty() const { return crow_indices_.empty(); }
  int64_t bytes() const { return static_cast<int64_t>(crow_indices_.size() + col_indices_.size()); }
  // Whether the indices at the key's addresses are those that lay there.
  SPARSE_AUTOTUNE_API bool matches(const PatternKey& key, const Parallel& parallel) const;

 private:
  std::vector<char> crow_indices_, col_indices_;
};

}  // namespace sparse_autotune
