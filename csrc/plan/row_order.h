// Block rows, whole or cut into parts, sorted by length: see row_orders.h.
#pragma once

#include "operators/product/product.h"
#include "plan/pattern.h"

namespace sparse_autotune {

// Whether the order can matter (whole rows: some are so much longer than others; parts: a row is
// cut) and is small beside the values.
bool row_order_pays(const PatternKey& key, const PatternFacts& facts, const Problem& problem,
                    int order);

// Entries and cut rows.
constexpr int64_t row_order_bytes(const PatternKey& key, const PatternFacts& facts, int order) {
  const int64_t entries = key.block_rows - facts.row_cuts.rows[order] + facts.row_cuts.parts[order];
  return entries * static_cast<int64_t>(sizeof(OrderedRow)) +
         facts.row_cuts.rows[order] * static_cast<int64_t>(sizeof(CutRow));
}

// Enqueues what fills `entries`, row_order_bytes() of device memory. Entries whose lengths differ
// by less than 1 / 4096 of the longest's may come in any order.
Status build_row_order_cuda(const PatternKey& key, const PatternFacts& facts, int order,
                            void* stream, OrderedRow* entries);

// The same for whole segments that `ends` bounds, `count` + 1 numbers on the device.
Status order_segments_cuda(const int32_t* ends, int64_t count, int64_t longest, void* stream,
                           OrderedRow* entries);

}  // namespace sparse_autotune
