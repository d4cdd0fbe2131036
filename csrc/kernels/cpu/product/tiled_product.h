// One launch of cpu_tiled: how its threads walk the product; tiled.cpp explains the terms.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>

#include "kernels/cpu/product/tiled_packing.h"
#include "kernels/cpu/shared/elements.h"
#include "kernels/cpu/shared/epilogue.h"
#include "kernels/cpu/shared/tiled_partition.h"

namespace sparse_autotune::cpu_tiled {

class Product {
 public:
  Product(const Problem& p, const Launch& l, const Microkernels& kernels, const Cut& cut)
      : p_(p),
        l_(l),
        kernels_(kernels),
        source_(cut.source),
        s_(make_blocking(p, *l.device, kernels, cut)),
        packing_(p, l, kernels, s_),
        crow_{l.crow_indices, p.index_type == IndexType::kInt64},
        columns_{l.col_indices, p.index_type == IndexType::kInt64},
        element_(size_of(p.dtype)) {
    slots_ = static_cast<char*>(l.workspace);
    packed_ = slots_ + s_.slots * s_.slot_bytes;
    direct_ = element_ == s_.acc_bytes && p.c_layout == Layout::kRowMajor &&
              p.activation == Activation::kNone;
    // A result that no L2 holds; aligned rows can be written past the caches.
    constexpr int64_t kStreamedBytes = 8 << 20, kVectorBytes = 64;
    streamed_ = direct_ && c_bytes(p) >= kStreamedBytes &&
                (reinterpret_cast<uintptr_t>(l.c) | static_cast<uintptr_t>(p.ldc * element_) |
                 static_cast<uintptr_t>(p.c_batch_stride * element_)) %
                        kVectorBytes ==
                    0;
  }

  void run() {
    if (source_ == Source::kOwnPanel) {
      run_own_panels();
    } else {
      run_shared_panels();
    }
  }

 private:
  struct Slot {
    int64_t* next_part;             // of the slot's parts that none has taken
    int64_t first_part, last_part;  // its own
    int64_t packed_panel = -1;      // that `packed` holds
    Ahead ahead;
    char* state;  // the level's
    char* bias;
    char* tile;    // [strip][row][column] accumulators
    char* values;  // widened values of a chunk
    char* copy;    // B's rows of a chunk
    char* packed;  // the slot's own panel
    char* spare;   // its next one
  };
  // Rows [k0, k0 + depth) of each of the blocks [block, block + count).
  struct Chunk {
    int64_t block, count, k0, depth;
    bool first, last;
  };

  int64_t block_rows() const { return p_.m / p_.block_m; }
  int64_t nnzb() const { return crow_[block_rows()]; }

  void run_own_panels() {
    const Partition partition(crow_, block_rows(), s_.spans, 1, s_.cuts);
    const int64_t tiles = block_rows() * s_.spans * s_.strips *
                          ceil_div(s_.span_rows, kernels_.rows_of(s_.strip / kernels_.lanes));
    for_each_part(s_.panels * p_.batch * s_.cuts, [&](Slot& memory, int64_t part) {
      const int64_t i = part / s_.cuts;
      if (memory.packed_panel != i) {
        own_panel(memory, i);
        // None but the thread's own parts are sure to be its next.
        const bool next_is_own = part >= memory.first_part && (i + 1) * s_.cuts < memory.last_part;
        if (s_.ahead && next_is_own) {
          memory.ahead = packing_.start_ahead(i + 1, memory.spare, tiles);
        }
      }
      const Panel panel = packing_.panel_at(i, memory.packed);
      partition.for_each_unit(part % s_.cuts, [&](int64_t, int64_t row, int64_t span) {
        run_span(memory, panel, row, span);
      });
    });
  }

  void run_shared_panels() {
    const int64_t total = s_.panels * p_.batch;
    const int64_t group = source_ == Source::kPanel ? s_.group : total;
    for (int64_t first = 0; first < total; first += group) {
      const int64_t panels = std::min(group, total - first);
      const auto panel = [&](int64_t i) {
        return packing_.panel_at(first + i, packed_ + i * s_.panel_bytes);
      };
      if (source_ == Source::kPanel) {
        const int64_t pieces = ceil_div(p_.k, kPackedRows);
        parallel_each(
            l_.parallel, panels * pieces, ceil_div(panels * pieces, s_.slots),
            [&](int64_t i) { packing_.pack_rows(panel(i / pieces), i % pieces * kPackedRows); });
      }
      const int64_t parts = s_.slots == 1 ? 1 : s_.slots * kPartsPerSlot;
      const Partition partition(crow_, block_rows(), s_.spans, panels, parts);
      for_each_part(parts, [&](Slot& memory, int64_t part) {
        int64_t current = -1;
        Panel walked{};
        partition.for_each_unit(part, [&](int64_t i, int64_t row, int64_t span) {
          if (i != current) walked = panel(current = i);
          run_span(memory, walked, row, span);
        });
      });
    }
  }

  // Has the slot hold the packed panel.
  void own_panel(Slot& memory, int64_t i) const {
    Ahead& ahead = memory.ahead;
    if (ahead.index == i) {
      std::swap(memory.packed, memory.spare);
      while (ahead.packed < ahead.rows) packing_.pack_ahead(ahead, ahead.rows);
    } else {
      const Panel panel = packing_.panel_at(i, memory.packed);
      for (int64_t row = 0; row < p_.k; row += kPackedRows) packing_.pack_rows(panel, row);
    }
    ahead = {};
    memory.packed_panel = i;
  }

  // Calls visit(slot's memory, part) for each part. A slot takes its own parts in order, then what
  // others have left: neither a slow core nor the partition's rounding keeps all others waiting.
  template <typename Visit>
  void for_each_part(int64_t parts, Visit&& visit) const {
    const auto first_part = [&](int64_t slot) { return parts * slot / s_.slots; };
    for (int64_t slot = 0; slot < s_.slots; ++slot) *slot_at(slot).next_part = first_part(slot);
    parallel_each(l_.parallel, s_.slots, 1, [&](int64_t slot) {
      Slot memory = slot_at(slot);
      memory.first_part = first_part(slot);
      memory.last_part = first_part(slot + 1);
      std::memset(memory.state, 0, kStateBytes);
      for (int64_t i = 0; i < s_.slots; ++i) {
        const int64_t owner = (slot + i) % s_.slots, last = first_part(owner + 1);
        const std::atomic_ref<int64_t> next(*slot_at(owner).next_part);
        for (int64_t part = next++; part < last; part = next++) visit(memory, part);
      }
      kernels_.release();
    });
  }

  Slot slot_at(int64_t slot) const {
    Slot memory{};
    char* base = slots_ + slot * s_.slot_bytes;
    memory.next_part = reinterpret_cast<int64_t*>(base);
    memory.state = base + kLineBytes;
    memory.bias = memory.state + kStateBytes;
    memory.tile = memory.bias + kSpanRows * 8;
    memory.values = memory.tile + round_up(s_.tile_bytes, 64);
    memory.copy = memory.values + round_up(s_.values_bytes, 64);
    memory.packed = packed_ + slot * s_.panel_bytes * (s_.ahead ? 2 : 1);
    memory.spare = memory.packed + s_.panel_bytes;
    return memory;
  }

  void run_span(Slot& memory, const Panel& panel, int64_t row, int64_t span) const {
    const int64_t r0 = span * s_.span_rows;
    const int64_t rows = std::min(s_.span_rows, p_.block_m - r0);
    load_bias(memory, row * p_.block_m + r0, rows);
    const int64_t first = crow_[row], last = crow_[row + 1];
    if (first == last) {
      run_chunk(memory, panel, row, r0, rows, {first, 0, 0, 0, true, true});
      return;
    }
    const int64_t chunks = ceil_div(last - first, std::max<int64_t>(s_.chunk_blocks, 1));
    const int64_t step = ceil_div(last - first, chunks);  // nearly the same for all
    for (int64_t block = first; block < last; block += step) {
      const int64_t count = std::min(step, last - block);
      const int64_t depth = s_.chunk_blocks > 0 ? p_.block_k : s_.depth;
      for (int64_t k0 = 0; k0 < p_.block_k; k0 += depth) {
        const int64_t part = std::min(depth, p_.block_k - k0);
        run_chunk(memory, panel, row, r0, rows,
                  {block, count, k0, part, block == first && k0 == 0,
                   block + count == last && k0 + part == p_.block_k});
      }
    }
  }

  const char* values_at(int64_t block, int64_t r, int64_t k0) const {
    return static_cast<const char*>(l_.values) +
           ((block * p_.block_m + r) * p_.block_k + k0) * element_;
  }
  // Those of the row's next span, or of the next row; of the next blocks where chunks are shorter.
  const char* values_after(int64_t row, int64_t r0, int64_t rows, const Chunk& chunk) const {
    if (!chunk.last) return values_at(chunk.block + chunk.count, r0, 0);
    if (r0 + rows < p_.block_m) return values_at(crow_[row], r0 + rows, 0);
    return values_at(crow_[row + 1], 0, 0);
  }

  void run_chunk(Slot& memory, const Panel& panel, int64_t row, int64_t r0, int64_t rows,
                 const Chunk& chunk) const {
    MultiplyTask task{};
    const int64_t block_elements = p_.block_m * p_.block_k;
    const char* values = values_at(chunk.block, r0, chunk.k0);
    const char* const next_values = values_after(row, r0, rows, chunk);
    task.block_stride = block_elements / kernels_.pair;
    task.row_stride = p_.block_k / kernels_.pair;
    if (kernels_.widen != nullptr) {
      widen_values(memory, values, rows, chunk);
      values = memory.values;
      task.block_stride = rows * chunk.depth;
      task.row_stride = chunk.depth;
    }
    task.state = memory.state;
    task.columns = columns_.from(chunk.block);
    task.count = chunk.count;
    task.depth = chunk.depth / kernels_.pair;
    const int64_t strip_tile = s_.span_rows * s_.strip * s_.acc_bytes;
    for (int64_t i = 0; i < panel.strips; ++i) {
      const Strip strip = s_.strip_at(panel, i);
      task.fetch = {};
      task.b_row_stride = strip.width;
      task.b_block_stride = p_.block_k / kernels_.pair * strip.width;
      if (source_ == Source::kPanel || source_ == Source::kOwnPanel) {
        task.b = packing_.packed_at(panel, strip, chunk.k0);
      } else if (source_ == Source::kInPlace && packing_.columns_of(strip) == strip.width) {
        task.b = packing_.b_at(panel, chunk.k0, strip.first_column);
        task.b_row_stride = p_.ldb;
        task.b_block_stride = p_.block_k * p_.ldb;
        packing_.fetch_in_place(panel, i + 1, chunk.k0, nnzb() - chunk.block - chunk.count, task);
      } else {
        char* copy = memory.copy + i * (s_.copy_bytes / s_.strips);
        const int64_t bytes = chunk.depth / kernels_.pair * strip.width * s_.acc_bytes;
        for (int64_t block = 0; block < chunk.count; ++block) {
          packing_.pack(panel, strip, columns_[chunk.block + block] * p_.block_k + chunk.k0,
                        chunk.depth, copy + block * bytes);
        }
        task.b = copy;
        task.columns = {};
        task.b_block_stride = task.depth * strip.width;
      }
      task.vectors = static_cast<int>(strip.width / kernels_.lanes);
      char* tile = memory.tile + i * strip_tile;
      char* c_at = static_cast<char*>(l_.c) +
                   (panel.batch * p_.c_batch_stride +
                    (row * p_.block_m + r0) * (p_.c_layout == Layout::kRowMajor ? p_.ldc : 1) +
                    strip.first_column * (p_.c_layout == Layout::kRowMajor ? 1 : p_.ldc)) *
                       element_;
      const bool direct = direct_ && chunk.last && packing_.columns_of(strip) == strip.width;
      task.output = !direct ? Output::kScratch : streamed_ ? Output::kStreamed : Output::kResult;
      multiply_rows(memory, task, values, i + 1 < panel.strips ? values : next_values, rows,
                    chunk.first, memory.bias, tile, direct ? c_at : tile,
                    direct ? p_.ldc : s_.strip);
      if (chunk.last && !direct) finish(tile, rows, packing_.columns_of(strip), c_at);
    }
  }

  // The span's rows in tiles of nearly equal height: 17 rows are 6 + 6 + 5, not 8 + 8 + 1.
  void multiply_rows(Slot& memory, MultiplyTask& task, const char* values, const char* next_values,
                     int64_t rows, bool first, const char* bias, const char* tile, char* out,
                     int64_t out_stride) const {
    const int count = static_cast<int>(rows);
    const int highest = static_cast<int>(kernels_.rows_of(task.vectors));
    const int tiles = (count + highest - 1) / highest;
    task.init_stride = s_.strip;
    task.out_stride = out_stride;
    const Fetch in_place = task.fetch;
    const int64_t a_row =
        task.row_stride * kernels_.pair * (kernels_.widen ? s_.acc_bytes : element_);
    for (int i = 0, r = 0; i < tiles; ++i, r += task.rows) {
      task.rows = count * (i + 1) / tiles - r;
      const char* const from = values + r * a_row;
      task.values = from;
      task.next_values = i + 1 < tiles ? from + task.rows * a_row : next_values;
      task.bias = bias + r * s_.acc_bytes;
      task.init = first ? nullptr : tile + r * s_.strip * s_.acc_bytes;
      task.out = out + r * out_stride * s_.acc_bytes;
      const int64_t arrived = memory.ahead.fetched;
      if (in_place.count > 0) {
        packing_.share_in_place(in_place.b, i, tiles, task);
      } else if (arrived < memory.ahead.rows) {
        packing_.fetch_ahead(memory.ahead, task);
      } else {
        task.fetch = {};
      }
      kernels_.multiply(task);
      const int64_t waiting = arrived - memory.ahead.packed;
      if (waiting >= kAheadRows || (waiting > 0 && arrived == memory.ahead.rows)) {
        packing_.pack_ahead(memory.ahead, arrived);
      }
    }
  }

  void widen_values(Slot& memory, const char* values, int64_t rows, const Chunk& chunk) const {
    for (int64_t i = 0; i < chunk.count; ++i) {
      const char* from = values + i * p_.block_m * p_.block_k * element_;
      char* to = memory.values + i * rows * chunk.depth * s_.acc_bytes;
      if (chunk.depth == p_.block_k) {
        kernels_.widen(from, rows * chunk.depth, to);
        continue;
      }
      for (int64_t r = 0; r < rows; ++r) {
        kernels_.widen(from + r * p_.block_k * element_, chunk.depth,
                       to + r * chunk.depth * s_.acc_bytes);
      }
    }
  }

  void load_bias(Slot& memory, int64_t row, int64_t rows) const {
    for (int64_t r = 0; r < rows; ++r) {
      const double x = p_.has_bias ? load(l_.bias, row + r, p_.dtype) : 0;
      store(memory.bias, r, p_.dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32, x);
    }
  }

  template <typename T>
  void activate_tile(char* tile, int64_t rows, int64_t columns) const {
    // Whole vectors: the rest of the last one is there, too.
    const int64_t width = round_up(columns, kernels_.lanes);
    const int64_t lines = width == s_.strip ? 1 : rows,
                  length = width == s_.strip ? rows * width : width;
    for (int64_t i = 0; i < lines; ++i) {
      activate_all(reinterpret_cast<T*>(tile) + i * s_.strip, length, p_.activation);
    }
  }

  void finish(char* tile, int64_t rows, int64_t columns, char* c) const {
    if (p_.activation != Activation::kNone) {
      if (p_.dtype == DType::kFloat64) {
        activate_tile<double>(tile, rows, columns);
      } else {
        activate_tile<float>(tile, rows, columns);
      }
    }
    kernels_.store({.tile = tile,
                    .tile_stride = s_.strip,
                    .rows = rows,
                    .columns = columns,
                    .c = c,
                    .ldc = p_.ldc,
                    .layout = p_.c_layout});
  }

  const Problem& p_;
  const Launch& l_;
  const Microkernels& kernels_;
  Source source_;
  const Blocking s_;
  const Packing packing_;
  Indices crow_, columns_;
  int64_t element_;
  char* slots_;
  char* packed_;
  bool direct_;  // tiles are written to C as they are
  bool streamed_;
};

}  // namespace sparse_autotune::cpu_tiled
