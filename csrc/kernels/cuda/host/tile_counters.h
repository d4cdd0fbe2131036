// Counters in device memory by which the thread blocks of one launch share out its work. Host code.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>

#include "kernels/cuda/device/panel_walk.cuh"
#include "operators/product/product.h"

namespace sparse_autotune {

// The counter for a launch on `stream` of the current device, 0 when that launch begins if it is
// left at 0 by the one before; null when there is none left. Launches on one stream share one, as
// they run one after the other. A launch that is being captured gets one of its own until its graph
// is gone: a graph's nodes may run at the same time as anything else.
unsigned* tile_counter(int ordinal, cudaStream_t stream);

// The same, kPartCounters of them next to each other.
constexpr unsigned kPartCounters = 512;
unsigned* part_counters(int ordinal, cudaStream_t stream);

// How many thread blocks are to work through the tiles, `resident` of them on a multiprocessor, or
// one where a `cluster` of them takes each tile.
inline unsigned share_out(Panels* panels, const Launch& l, int resident = 1, unsigned cluster = 1) {
  const auto at_once = static_cast<unsigned>(resident * l.device->multiprocessors) / cluster;
  const unsigned takers = std::min(panels->tiles, std::max(at_once, 1u));
  // Two rounds are dealt out before there is anything to share.
  if (panels->tiles > 2 * takers) {
    panels->counter = tile_counter(l.device->ordinal, static_cast<cudaStream_t>(l.stream));
  }
  return takers * cluster;
}

}  // namespace sparse_autotune
