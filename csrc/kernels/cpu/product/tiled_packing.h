// B for cpu_tiled: where its rows lie and how they are packed, all at once or ahead of their use.
#pragma once

#include <algorithm>

#include "kernels/cpu/shared/tiled_blocking.h"
#include "operators/product/product.h"

namespace sparse_autotune::cpu_tiled {

inline constexpr int64_t kPackedRows = 64;  // of B, packed at a time

// The panel that a thread packs while it multiplies the one before: each tile fetches a few of its
// rows, and they are packed, kAheadRows together, once they have come.
struct Ahead {
  int64_t index = -1;  // of all panels; -1: none
  Panel panel{};
  int64_t rows = 0;     // of B, counted anew in each strip
  int64_t share = 0;    // a tile's
  int64_t fetched = 0;  // asked for
  int64_t packed = 0;
};
inline constexpr int64_t kAheadRows = 32;

class Packing {
 public:
  Packing(const Problem& p, const Launch& l, const Microkernels& kernels, const Blocking& blocking)
      : p_(p), l_(l), kernels_(kernels), s_(blocking), element_(size_of(p.dtype)) {}

  Panel panel_at(int64_t i, char* packed) const {
    Panel panel = s_.panel(i);
    panel.packed = packed;
    return panel;
  }
  // Of C; the last vector of a row may be longer than the row.
  int64_t columns_of(const Strip& strip) const {
    return std::min(strip.width, p_.n - strip.first_column);
  }
  char* packed_at(const Panel& panel, const Strip& strip, int64_t row) const {
    return panel.packed + strip.index * s_.strip_bytes +
           row / kernels_.pair * strip.width * s_.acc_bytes;
  }
  const char* b_at(const Panel& panel, int64_t row, int64_t column) const {
    const int64_t offset =
        panel.batch * p_.b_batch_stride +
        (p_.b_layout == Layout::kRowMajor ? row * p_.ldb + column : column * p_.ldb + row);
    return static_cast<const char*>(l_.b) + offset * element_;
  }

  // kPackedRows of all strips, or the panel's last ones.
  void pack_rows(const Panel& panel, int64_t row) const {
    for (int64_t i = 0; i < panel.strips; ++i) {
      const Strip strip = s_.strip_at(panel, i);
      pack(panel, strip, row, std::min(kPackedRows, p_.k - row), packed_at(panel, strip, row));
    }
  }

  void pack(const Panel& panel, const Strip& strip, int64_t row, int64_t depth, void* to) const {
    kernels_.pack({.b = b_at(panel, row, strip.first_column),
                   .ldb = p_.ldb,
                   .layout = p_.b_layout,
                   .depth = depth,
                   .columns = columns_of(strip),
                   .width = strip.width,
                   .strip = to});
  }

  // `tiles`: that the thread multiplies meanwhile, about.
  Ahead start_ahead(int64_t i, char* packed, int64_t tiles) const {
    Ahead ahead;
    ahead.index = i;
    ahead.panel = panel_at(i, packed);
    ahead.rows = ahead.panel.strips * p_.k;
    ahead.share = ceil_div(ahead.rows, tiles);
    return ahead;
  }

  // Has the task fetch the next rows.
  void fetch_ahead(Ahead& ahead, MultiplyTask& task) const {
    const int64_t row = ahead.fetched % p_.k, rows = std::min(ahead.share, p_.k - row);
    const Strip strip = s_.strip_at(ahead.panel, ahead.fetched / p_.k);
    task.fetch = {};
    task.fetch.b = b_at(ahead.panel, row, strip.first_column);
    task.fetch.row_stride = p_.ldb;
    task.fetch.rows = rows;
    task.fetch.burst = ceil_div(rows, std::max<int64_t>(task.count * fetches_a_block(task), 1));
    ahead.fetched += rows;
  }

  // Packs rows before `end`, of one strip.
  void pack_ahead(Ahead& ahead, int64_t end) const {
    const int64_t row = ahead.packed % p_.k, rows = std::min(end - ahead.packed, p_.k - row);
    const Strip strip = s_.strip_at(ahead.panel, ahead.packed / p_.k);
    pack(ahead.panel, strip, row, rows, packed_at(ahead.panel, strip, row));
    ahead.packed += rows;
  }

  // In place: has the task's tiles fetch the rows of `strip` in the chunk's blocks or, after the
  // panel's last strip, those of the first in as many of the blocks that follow.
  void fetch_in_place(const Panel& panel, int64_t strip, int64_t k0, int64_t following,
                      MultiplyTask& task) const {
    const bool same_blocks = strip < panel.strips;
    if (!same_blocks && task.depth < p_.block_k) return;
    const int64_t first_column = s_.strip_at(panel, same_blocks ? strip : 0).first_column;
    task.fetch.b = b_at(panel, same_blocks ? k0 : 0, first_column);
    task.fetch.row_stride = p_.ldb;
    task.fetch.columns = same_blocks ? task.columns : task.columns.from(task.count);
    task.fetch.count = same_blocks ? task.count : std::min(task.count, following);
    task.fetch.block_stride = p_.block_k * p_.ldb;
  }
  // The share of a tile in that: some rows of every block.
  void share_in_place(const void* first, int64_t tile, int64_t tiles, MultiplyTask& task) const {
    const int64_t begin = task.depth * tile / tiles, end = task.depth * (tile + 1) / tiles;
    task.fetch.b = static_cast<const char*>(first) + begin * p_.ldb * element_;
    task.fetch.rows = end - begin;
    task.fetch.burst = ceil_div(task.fetch.rows, fetches_a_block(task));
  }

 private:
  static int64_t fetches_a_block(const MultiplyTask& task) {
    return ceil_div(task.depth, kStepsPerFetch);
  }

  const Problem& p_;
  const Launch& l_;
  const Microkernels& kernels_;
  const Blocking& s_;
  int64_t element_;
};

}  // namespace sparse_autotune::cpu_tiled
