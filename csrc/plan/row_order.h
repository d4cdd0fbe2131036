// Block rows sorted by length, longest first: see OrderedRow.
#pragma once

#include "plan/pattern.h"
#include "variant.h"

namespace sparse_autotune {

// Whether some row is so much longer than others that the order can matter, and the order is small
// beside the values.
bool row_order_pays(const PatternKey& key, const PatternFacts& facts, const Problem& problem);

constexpr int64_t row_order_bytes(const PatternKey& key) {
  return key.block_rows * static_cast<int64_t>(sizeof(OrderedRow));
}

// Enqueues what fills `order`, row_order_bytes() of device memory. Rows whose lengths differ by
// less than (longest_row + 1) / 4096 may come in any order.
Status build_row_order_cuda(const PatternKey& key, const PatternFacts& facts, void* stream,
                            OrderedRow* order);

}  // namespace sparse_autotune
