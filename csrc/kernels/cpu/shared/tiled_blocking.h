// The sizes that cpu_tiled cuts a product into; tiled.cpp explains the terms.
#pragma once

#include <unistd.h>

#include <algorithm>

#include "kernels/cpu/microkernels/tiled.h"
#include "operators/product/product.h"

namespace sparse_autotune::cpu_tiled {

inline constexpr int64_t kSpanRows = 64;
// Of panels packed at a time: scratch below glibc's largest mmap threshold (32 MB) is mapped once,
// not page by page in every launch.
inline constexpr int64_t kPackedBytes = 24 << 20;
inline constexpr int64_t kOwnPanelBytes = 1 << 20;  // of an L2
inline constexpr int64_t kWholeRow = int64_t{1} << 40;
inline constexpr int64_t kFewestRows = 64, kMostRows = 256;  // in a chunk of rows read in place
inline constexpr int64_t kWidenedBytes = 16 << 10;  // a chunk of B whose values are widened first
inline constexpr int64_t kUnitsPerSlot = 4;  // at least, of block rows (or spans) times panels
// In place, where nothing is packed, more units than that even out rows of unequal length: up to so
// many of them pay where panels keep so many strips, for each panel walks A, and the pages of its
// rows, anew. Two threads gain nothing by it.
struct Finer {
  int64_t units_per_slot, strips;
};
inline constexpr int64_t kFewestFinerSlots = 8;
inline constexpr Finer kFinerInPlace[] = {{12, 2}, {24, 7}};
// Cores of one machine differ by a third and more (a sibling at work, two threads on one core): the
// faster ones take over parts of this size.
inline constexpr int64_t kPartsPerSlot = 12;

enum class Source : uint8_t { kInPlace, kBlock, kPanel, kOwnPanel };

// What a variant chooses.
struct Cut {
  Source source;
  int64_t panel_columns;  // at most
  int64_t chunk_bytes;    // of B in a chunk of one strip
};

inline int64_t round_up(int64_t x, int64_t to) { return ceil_div(x, to) * to; }
// The share of vectors' lanes along B's columns that have one.
inline double lanes_used(const Problem& p, int64_t lanes) {
  return static_cast<double>(p.n) / static_cast<double>(round_up(std::max<int64_t>(p.n, 1), lanes));
}

// Strips of `width` columns, but for those from `narrow` on: these are a granule narrower.
struct Panel {
  int64_t batch, first_column, strips, width, narrow;
  char* packed;
};

struct Strip {
  int64_t first_column, width;  // in whole vectors
  int64_t index;                // in its panel
};

// Sizes of one launch: a pure function of problem, level and configuration, so that
// workspace_bytes() and launch() agree.
struct Blocking {
  int64_t acc_bytes;   // of an accumulator, and of an element of B's strips
  int64_t columns;     // of one matrix of the batch, in whole vectors
  int64_t granule;     // a strip's columns are a multiple of it, but for the last one's
  int64_t all_strips;  // of one matrix of the batch, of nearly equal width
  int64_t strip;       // columns of the widest
  int64_t panels;      // of one matrix of the batch, of nearly as many strips each
  int64_t strips;      // of the longest panel
  int64_t span_rows, spans;
  int64_t depth;         // rows of B in a chunk
  int64_t chunk_blocks;  // whole blocks in a chunk, or 0: a chunk is a part of a block
  int64_t slots;
  int64_t cuts;                             // parts that a thread's own panel is multiplied in
  int64_t strip_bytes, panel_bytes, group;  // of packed panels; panels packed at a time
  bool ahead;                               // a thread packs its next panel while it multiplies
  int64_t packed_bytes;                     // of all packed panels
  int64_t tile_bytes, values_bytes, copy_bytes, slot_bytes;

  // The i-th of all matrices, not packed yet.
  Panel panel(int64_t i) const {
    const int64_t strip = all_strips * (i % panels) / panels;
    const int64_t next_strip = all_strips * (i % panels + 1) / panels, count = next_strip - strip;
    const int64_t first = first_column(strip);
    const int64_t granules = ceil_div(first_column(next_strip) - first, granule);
    const int64_t widest = ceil_div(granules, count);
    return {i / panels, first, count, widest * granule, granules - count * (widest - 1), nullptr};
  }
  Strip strip_at(const Panel& panel, int64_t i) const {
    const int64_t narrow = std::max<int64_t>(i - panel.narrow, 0);
    const int64_t first = panel.first_column + i * panel.width - narrow * granule;
    const int64_t width_there = panel.width - (i < panel.narrow ? 0 : granule);
    return {first, std::min(width_there, columns - first), i};
  }

 private:
  int64_t first_column(int64_t strip) const {
    return std::min(ceil_div(columns, granule) * strip / all_strips * granule, columns);
  }
};

// A team of threads is not worth waking for less than kTeamUs of one thread's work; then each
// should have kSlotUs. Rates as in autotune/device.cpp, at the half that is usual.
inline int64_t count_slots(const Problem& p, const Device& d) {
  constexpr double kTeamUs = 8, kSlotUs = 2;
  const double us = d.threads * roofline_us(nnz_flops(p), 0.5 * fma_tflops(p, d),
                                            compulsory_bytes(p), d.memory_gbps, 0);
  if (us < kTeamUs) return 1;
  return std::clamp<int64_t>(static_cast<int64_t>(us / kSlotUs), 1, std::max(d.threads, 1));
}

// A core's own L2; 0: unknown.
inline int64_t core_cache_bytes() {
  static const int64_t bytes = std::max<int64_t>(sysconf(_SC_LEVEL2_CACHE_SIZE), 0);
  return bytes;
}

// A small L2 leaves a quarter to A and C, which pass through it.
inline int64_t own_panel_vectors(int64_t vector_bytes) {
  const int64_t fitting = core_cache_bytes() > 0 ? core_cache_bytes() / 4 * 3 : kOwnPanelBytes;
  return std::max<int64_t>(std::min(kOwnPanelBytes, fitting) / std::max<int64_t>(vector_bytes, 1),
                           1);
}
// Of a strip that ends with a line, at most.
inline int64_t vectors_in_lines(const Microkernels& kernels, int64_t acc_bytes) {
  const int64_t line = std::max<int64_t>(kLineBytes / (kernels.lanes * acc_bytes), 1);
  return kernels.vectors / line * line;
}
inline int64_t count_vectors(const Problem& p, const Microkernels& kernels) {
  return std::max<int64_t>(ceil_div(p.n, kernels.lanes), 1);
}

// Panels of one matrix: the widest that are narrow enough, but enough of them for all threads where
// there are few rows, and for a thread's own panels a number that all threads share evenly.
inline int64_t count_panels(const Problem& p, const Cut& cut, const Microkernels& kernels,
                            int64_t slots, int64_t spans, int64_t strip, int64_t vector_bytes) {
  const int64_t vectors = count_vectors(p, kernels);
  int64_t widest = cut.panel_columns / kernels.lanes;
  if (cut.source != Source::kOwnPanel) {
    const int64_t units = std::max<int64_t>(p.m / p.block_m * spans * p.batch, 1);
    const int64_t strips = ceil_div(vectors, strip), fewest = ceil_div(vectors, widest);
    if (slots == 1) return fewest;
    int64_t panels = std::max(fewest, std::min(ceil_div(kUnitsPerSlot * slots, units), strips));
    if (cut.source != Source::kInPlace || slots < kFewestFinerSlots) return panels;
    for (const Finer& finer : kFinerInPlace) {
      panels =
          std::max(panels, std::min(finer.units_per_slot * slots / units, strips / finer.strips));
    }
    return panels;
  }
  widest = std::min(widest, own_panel_vectors(vector_bytes));
  const int64_t fewest = ceil_div(vectors, widest);
  const int64_t even = round_up(fewest * p.batch, slots);
  return even % p.batch == 0 && even / p.batch <= vectors ? even / p.batch : fewest;
}

// Who takes over a part of another's panel packs the panel anew: no part is shorter than that.
inline int64_t count_cuts(const Problem& p, const Device& d, int64_t slots, int64_t panels,
                          int64_t panel_bytes) {
  if (slots == 1) return 1;
  const double threads = std::max(d.threads, 1), all = static_cast<double>(panels * p.batch);
  const double multiply_us = nnz_flops(p) / all / (peak_tflops(p, d) / threads * 1e6);
  const double pack_us = static_cast<double>(panel_bytes) / (d.memory_gbps / threads * 1e3);
  const int64_t wanted = ceil_div(kPartsPerSlot * slots, panels * p.batch);
  return std::clamp<int64_t>(static_cast<int64_t>(multiply_us / pack_us), 1, wanted);
}

inline Blocking make_blocking(const Problem& p, const Device& d, const Microkernels& kernels,
                              const Cut& cut) {
  Blocking s{};
  s.acc_bytes = p.dtype == DType::kFloat64 ? 8 : 4;
  s.slots = count_slots(p, d);
  const int64_t vector_bytes = p.k / kernels.pair * kernels.lanes * s.acc_bytes;
  s.span_rows = std::min(p.block_m, kSpanRows);
  s.spans = ceil_div(p.block_m, s.span_rows);
  // In place, two strips that share a line would both fetch it.
  int64_t widest =
      cut.source == Source::kInPlace ? vectors_in_lines(kernels, s.acc_bytes) : kernels.vectors;
  s.panels = count_panels(p, cut, kernels, s.slots, s.spans, widest, vector_bytes);
  const int64_t vectors = count_vectors(p, kernels);
  widest = std::min(widest, vectors);
  if (cut.source == Source::kOwnPanel) widest = std::min(widest, own_panel_vectors(vector_bytes));
  s.all_strips = std::max(ceil_div(vectors, widest), s.panels);
  // Tiles an even number of vectors wide are walked in pairs of them (AMX) or hold just two.
  const int64_t pair = widest % 2 == 0 && s.all_strips <= ceil_div(vectors, 2) ? 2 : 1;
  s.columns = vectors * kernels.lanes;
  s.granule = pair * kernels.lanes;
  s.strip = ceil_div(ceil_div(vectors, pair), s.all_strips) * s.granule;
  s.strips = ceil_div(s.all_strips, s.panels);
  const int64_t chunk_bytes =
      kernels.widen == nullptr ? cut.chunk_bytes : std::min(cut.chunk_bytes, kWidenedBytes);
  int64_t depth = chunk_bytes / (s.strip * s.acc_bytes) * kernels.pair / 32 * 32;
  if (cut.source == Source::kInPlace) {
    // Rows that lie a power of two apart share few sets of an L2: as many of them as fill half of
    // it from end to end find room there in every strip.
    const int64_t rows = core_cache_bytes() / 2 / std::max<int64_t>(p.ldb * s.acc_bytes, 1);
    depth = std::min(depth, std::clamp(rows / 32 * 32, kFewestRows, kMostRows));
  }
  s.chunk_blocks = depth / p.block_k;
  s.depth = s.chunk_blocks > 0 ? s.chunk_blocks * p.block_k : depth;
  // A strip more than a power of two apart: its neighbours map to other cache sets.
  s.strip_bytes = round_up(p.k / kernels.pair * s.strip * s.acc_bytes, 256) + 256;
  s.panel_bytes = s.strips * s.strip_bytes;
  s.cuts = count_cuts(p, d, s.slots, s.panels, s.panel_bytes);
  s.group = std::clamp<int64_t>(kPackedBytes / s.panel_bytes, 1, s.panels * p.batch);
  // Only where a panel is its thread's alone, and where an L2 holds two of them and as much again,
  // but not all of B.
  s.ahead = cut.source == Source::kOwnPanel && !is_half(p.dtype) &&
            p.b_layout == Layout::kRowMajor && s.cuts == 1 && s.panels * p.batch > s.slots &&
            b_bytes(p) > core_cache_bytes() && 2 * s.panel_bytes <= core_cache_bytes() / 2;
  s.packed_bytes = s.panel_bytes * (cut.source == Source::kPanel      ? s.group
                                    : cut.source == Source::kOwnPanel ? s.slots * (s.ahead ? 2 : 1)
                                                                      : 0);
  s.tile_bytes = round_up(s.strips * s.span_rows * s.strip * s.acc_bytes, 64);
  s.values_bytes = kernels.widen == nullptr ? 0 : s.span_rows * s.depth * s.acc_bytes;
  s.copy_bytes = cut.source == Source::kBlock || cut.source == Source::kInPlace
                     ? s.strips * s.depth / kernels.pair * s.strip * s.acc_bytes
                     : 0;
  s.slot_bytes = kLineBytes + kStateBytes + kSpanRows * 8 + round_up(s.tile_bytes, 64) +
                 round_up(s.values_bytes, 64) + round_up(s.copy_bytes, 64);
  s.slot_bytes = round_up(s.slot_bytes, 256) + 256;
  return s;
}

}  // namespace sparse_autotune::cpu_tiled
