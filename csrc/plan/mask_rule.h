// Masks of common rules of attention: which blocks a block row stores is one range of columns, the
// first columns, and every so many-th one. Known from a few numbers, on host and device alike.
#pragma once

#include <algorithm>
#include <cstdint>

#include "host_device.h"
#include "variant.h"

namespace sparse_autotune {

// Column c is stored where begin <= c < end, c < first, or c is the last of `step` and < limit.
struct RuleRow {
  int32_t begin, end, first, step, limit;

  SPARSE_AUTOTUNE_HOST_DEVICE bool stores(int32_t c) const {
    return (begin <= c && c < end) || c < first || (c < limit && c % step == step - 1);
  }
  SPARSE_AUTOTUNE_HOST_DEVICE int32_t count() const {
    return end - begin + outside(0, begin) + outside(end, limit);
  }

 private:
  // Of columns from a on and before b. No rule has both first columns and steps.
  SPARSE_AUTOTUNE_HOST_DEVICE int32_t outside(int32_t a, int32_t b) const {
    const int32_t of_first = std::min(b, first) - a;
    return a < b ? std::max(of_first, 0) + b / step - a / step : 0;
  }
};

// A block is stored where any of its elements may be seen.
struct MaskRule {
  int64_t queries, keys, block_m, block_n;
  int64_t window;         // of tokens: keys that are less far away are seen
  int64_t sinks;          // the first keys, seen by all queries
  int64_t stride, local;  // of blocks: 0, or as BlockMask.strided has them, in place of the window
  bool is_causal;
  // Where documents end, ascending, `documents` of each pattern, or -1 and null. In place of the
  // window, too. On the device that the lists are for.
  int64_t documents;
  const int64_t* ends;

  SPARSE_AUTOTUNE_HOST_DEVICE int64_t rows() const { return ceil_div(queries, block_m); }
  SPARSE_AUTOTUNE_HOST_DEVICE int64_t columns() const { return ceil_div(keys, block_n); }

  SPARSE_AUTOTUNE_HOST_DEVICE RuleRow row(int64_t pattern, int64_t r) const {
    const int64_t query = r * block_m, last_query = std::min(query + block_m, queries) - 1;
    const int64_t diagonal = last_query / block_n;
    const int64_t limit = is_causal ? std::min(columns(), diagonal + 1) : columns();
    int64_t key = query - window + 1, end_key = last_query + window;
    if (stride > 0) key = (diagonal - local + 1) * block_n, end_key = (diagonal + local) * block_n;
    if (documents >= 0) {
      const int64_t* const of_pattern = ends + pattern * documents;
      const int64_t first = ended_at(of_pattern, query), last = ended_at(of_pattern, last_query);
      key = first > 0 ? of_pattern[first - 1] : 0;
      // Tokens behind the last document see nothing.
      end_key = first < documents ? of_pattern[std::min(last, documents - 1)] : 0;
    }
    const int64_t begin =
        key >= keys ? limit : std::min(std::max<int64_t>(key, 0) / block_n, limit);
    const int64_t end = std::min(ceil_div(std::max<int64_t>(end_key, 0), block_n), limit);
    return {static_cast<int32_t>(begin), static_cast<int32_t>(std::max(begin, end)),
            static_cast<int32_t>(std::min(ceil_div(sinks, block_n), limit)),
            static_cast<int32_t>(stride > 0 ? stride : INT32_MAX), static_cast<int32_t>(limit)};
  }

 private:
  // How many documents end at the token or before it: the number of its own.
  SPARSE_AUTOTUNE_HOST_DEVICE int64_t ended_at(const int64_t* of_pattern, int64_t token) const {
    int64_t low = 0, high = documents;
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (of_pattern[middle] <= token) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }
};

}  // namespace sparse_autotune
