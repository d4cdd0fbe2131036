// The sizes that cpu_tiled cuts a product into; tiled.cpp explains the terms.
#pragma once

#include <algorithm>

#include "kernels/cpu/tiled.h"

namespace sparse_autotune::cpu_tiled {

inline constexpr int64_t kSpanRows = 64;
inline constexpr int64_t kChunkBytes = 16 << 10;   // half of the smallest L1 in use
inline constexpr int64_t kPackedBytes = 64 << 20;  // panels packed at a time

enum class Source : uint8_t { kInPlace, kBlock, kPanel };

inline int64_t round_up(int64_t x, int64_t to) { return ceil_div(x, to) * to; }

// Sizes of one launch: a pure function of problem, level and configuration, so that
// workspace_bytes() and launch() agree.
struct Blocking {
  int64_t acc_bytes;  // of an accumulator, and of an element of B's strips
  int64_t strip;      // columns of a full strip
  int64_t strips;     // in a panel
  int64_t panel_columns;
  int64_t panels;  // of one matrix of the batch
  int64_t span_rows, spans;
  int64_t depth;         // rows of B in a chunk
  int64_t chunk_blocks;  // whole blocks in a chunk, or 0: a chunk is a part of a block
  int64_t slots;
  int64_t strip_bytes, panel_bytes, group;  // of packed panels; panels packed at a time
  int64_t tile_bytes, values_bytes, copy_bytes, slot_bytes;
};

inline Blocking make_blocking(const Problem& p, const Device& d, const Microkernels& kernels,
                              Source source, int64_t panel_columns) {
  Blocking s{};
  s.acc_bytes = p.dtype == DType::kFloat64 ? 8 : 4;
  s.strip = kernels.lanes * std::min(kernels.vectors, ceil_div(p.n, kernels.lanes));
  s.strips = std::min(std::max<int64_t>(panel_columns / s.strip, 1), ceil_div(p.n, s.strip));
  s.panel_columns = s.strips * s.strip;
  s.panels = ceil_div(p.n, s.panel_columns);
  s.span_rows = std::min(p.block_m, kSpanRows);
  s.spans = ceil_div(p.block_m, s.span_rows);
  const int64_t depth = kChunkBytes / (s.strip * s.acc_bytes) * kernels.pair / 32 * 32;
  s.chunk_blocks = depth / p.block_k;
  s.depth = s.chunk_blocks > 0 ? s.chunk_blocks * p.block_k : depth;
  s.slots = std::max(d.threads, 1);
  // A strip more than a power of two apart: its neighbours map to other cache sets.
  s.strip_bytes = round_up(p.k / kernels.pair * s.strip * s.acc_bytes, 256) + 256;
  s.panel_bytes = s.strips * s.strip_bytes;
  s.group = std::clamp<int64_t>(kPackedBytes / s.panel_bytes, 1, s.panels * p.batch);
  s.tile_bytes = round_up(s.strips * s.span_rows * s.strip * s.acc_bytes, 64);
  s.values_bytes = kernels.widen == nullptr ? 0 : s.span_rows * s.depth * s.acc_bytes;
  s.copy_bytes =
      source != Source::kPanel ? s.strips * s.depth / kernels.pair * s.strip * s.acc_bytes : 0;
  s.slot_bytes = round_up(1024 * 8, 64) + round_up(s.tile_bytes, 64) +
                 round_up(s.values_bytes, 64) + round_up(s.copy_bytes, 64);
  s.slot_bytes = round_up(s.slot_bytes, 256) + 256;
  return s;
}

}  // namespace sparse_autotune::cpu_tiled
