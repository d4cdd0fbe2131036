// How many items of a forward pass are split, and into how many parts. Host code.
//
// Items are dealt out in rounds, one to each multiprocessor. Those of a last round that is not full
// are split into as many parts as make that round shortest; where there is no full round, as with
// few rows along many columns, all items are.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/attention/attention_requirements.h"
#include "kernels/cuda/attention/item_parts.cuh"
#include "kernels/cuda/attention/tile_lists.h"
#include "kernels/cuda/attention/work_items.cuh"
#include "kernels/cuda/host/tile_counters.h"

namespace sparse_autotune {

// Of the lists of tiles of `rows` rows, which are in front of the parts in the workspace.
inline int64_t lists_bytes(const attention::Problem& p, int rows) {
  const AttentionForward a = attention::forward_arguments(p, {});
  return tile_lists_bytes(a.mask, a.shape, rows, p.capacity);
}

struct ItemSplit {
  int items = 0, parts = 1;  // the last items; parts of each
  int64_t part_bytes = 0;    // of each part

  int64_t bytes() const { return items * parts * part_bytes; }

  // Tells the kernel. The parts begin `offset` bytes into the workspace, a multiple of 16.
  void apply(int64_t offset, const attention::Launch& l, AttentionWork* work) const {
    if (items == 0) return;
    unsigned* counters = part_counters(l.device->ordinal, static_cast<cudaStream_t>(l.stream));
    if (counters == nullptr) return;
    void* const memory = static_cast<char*>(l.workspace) + offset;
    work->parts = {work->items - items, parts, static_cast<float4*>(memory), counters};
    work->items += items * (parts - 1);
  }
};

// Of items of `rows` rows, of which each multiprocessor works on `at_once`. What makes less than
// `least_gain` of a launch's time shorter is not done: the sums of parts take memory.
inline ItemSplit split_items(const attention::Problem& p, const Device& d, int rows, int at_once,
                             double least_gain = 0.01) {
  constexpr int kMostParts = 16;
  const int64_t items = ceil_div(p.rows, rows) * p.batch * p.heads;
  const int64_t takers = int64_t{at_once} * d.multiprocessors, rest = items % takers;
  // Under a causal rule the last items are the shortest.
  if (p.is_causal || rest * part_counters_of(rows / 16) > kPartCounters) return {};
  const double columns = static_cast<double>(p.columns) * merged_density(p, rows);
  // As long as so many columns take. What splitting adds was measured on an H200: 3.4 us, and 0.4
  // us for each part, which 128 rows of q need for 340 and 38 columns (heads of 128).
  const auto time = [&](int parts) {
    const double each = columns / parts + (parts > 1 ? 400 + 40 * parts : 0);
    return static_cast<double>(ceil_div(rest * parts, takers)) * each;
  };
  int best = 1;
  for (int parts = 2; parts <= kMostParts; ++parts) {
    if (time(parts) < time(best)) best = parts;
  }
  const double rounds = static_cast<double>(items / takers + 1);
  if (best == 1 || time(1) - time(best) < least_gain * rounds * columns) return {};
  return {static_cast<int>(rest), best, rows * part_row_bytes(p.dim)};
}

}  // namespace sparse_autotune
