// cpu_rows for half types: a few block rows at a time are widened into L1, multiplied by the code
// for fp32 and narrowed. B is widened before, all of it: it is small beside A.
#pragma once

#include <algorithm>

#include "kernels/cpu/microkernels/rows.h"
#include "kernels/cpu/shared/elements.h"
#include "kernels/cpu/shared/epilogue.h"
#include "kernels/cpu/shared/tiled_blocking.h"
#include "kernels/cpu/shared/tiled_partition.h"

namespace sparse_autotune::cpu_rows {

// Sizes of one launch: a pure function of the problem, so that workspace_bytes() and launch()
// agree.
struct HalvesShape {
  bool vectors;  // the form for one column
  int64_t ldb;   // of B's copy: from one column to the next (vectors), or from row to row
  int64_t b_bytes, bias_bytes;
  int64_t blocks;  // that are widened at a time
  int64_t sums;    // of rows that are multiplied at a time
  int64_t rows;    // block rows of them, at most
  int64_t values_bytes, sums_bytes, slot_bytes;
};

inline HalvesShape halves_shape_of(const Problem& p, bool vectors, int64_t lanes) {
  using cpu_tiled::round_up;
  constexpr int64_t kWidened = 4096, kSums = 4096, kMostRows = 512, kFloat = 4;
  HalvesShape s{};
  s.vectors = vectors;
  const bool turned = !vectors && p.b_layout == Layout::kColMajor;
  s.ldb = vectors ? p.k : turned ? round_up(p.n, lanes) : p.n;
  s.b_bytes = round_up(p.batch * s.ldb * (vectors ? p.n : p.k) * kFloat, 256);
  s.bias_bytes = p.has_bias ? round_up(p.m * kFloat, 256) : 0;
  s.blocks = std::max<int64_t>(kWidened / (p.block_m * p.block_k), 1);
  s.sums = std::max<int64_t>(kSums, p.block_m * p.n);
  s.rows = std::clamp<int64_t>(kSums / std::max<int64_t>(p.block_m * p.n, 1), 1, kMostRows);
  s.values_bytes = round_up(s.blocks * p.block_m * p.block_k * kFloat, 64);
  s.sums_bytes = round_up((s.sums + lanes) * kFloat, 64);
  // Twice the sums: those of a long row's part, too.
  s.slot_bytes = round_up(s.values_bytes + 2 * s.sums_bytes + (s.rows + 1) * 8, 256) + 256;
  return s;
}

class HalvesProduct {
 public:
  HalvesProduct(const Problem& p, const Launch& l, const HalvesShape& shape,
                const RowKernels& floats, const cpu_tiled::Microkernels& halves)
      : p_(p),
        l_(l),
        s_(shape),
        multiply_(shape.vectors ? floats.vectors : floats.columns),
        halves_(halves),
        crow_{l.crow_indices, p.index_type == IndexType::kInt64},
        columns_{l.col_indices, crow_.wide},
        rows_(p.m / p.block_m),
        elements_(p.block_m * p.block_k),
        values_(static_cast<const Half*>(l.values)),
        b_(static_cast<float*>(l.workspace)),
        bias_(b_ + shape.b_bytes / 4),
        slots_(static_cast<char*>(l.workspace) + shape.b_bytes + shape.bias_bytes) {
    task_.wide = crow_.wide;
    task_.wide_crow = true;
    task_.block_m = p.block_m;
    task_.block_k = p.block_k;
    task_.row_stride = row_stride_in_block(p);
    task_.k_stride = k_stride_in_block(p);
    task_.ldb = shape.ldb;
    task_.n = p.n;
  }

  void run() {
    const int64_t slots = cpu_tiled::count_slots(p_, *l_.device);
    widen_b(slots);
    if (p_.has_bias) halves_.widen(l_.bias, p_.m, bias_);
    const int64_t parts = cpu_tiled::parts_of(slots);
    const cpu_tiled::Partition partition(crow_, rows_, 1, 1, parts);
    cpu_tiled::for_each_part(l_.parallel, slots, parts * p_.batch, [&](int64_t slot, int64_t i) {
      int64_t first = rows_, last = 0;
      partition.for_each_unit(i % parts, [&](int64_t, int64_t row, int64_t) {
        first = std::min(first, row);
        last = row + 1;
      });
      multiply(slot_at(slot), i / parts, first, last);
    });
  }

 private:
  using Half = uint16_t;
  struct Slot {
    float *values, *sums, *part;
    int64_t* bounds;
  };

  Slot slot_at(int64_t i) const {
    char* const base = slots_ + i * s_.slot_bytes;
    char* const sums = base + s_.values_bytes;
    return {reinterpret_cast<float*>(base), reinterpret_cast<float*>(sums),
            reinterpret_cast<float*>(sums + s_.sums_bytes),
            reinterpret_cast<int64_t*>(sums + 2 * s_.sums_bytes)};
  }

  void widen_b(int64_t slots) const {
    const bool row_major = p_.b_layout == Layout::kRowMajor;
    for (int64_t matrix = 0; matrix < p_.batch; ++matrix) {
      const Half* const from = static_cast<const Half*>(l_.b) + matrix * p_.b_batch_stride;
      float* const to = b_ + matrix * s_.ldb * (s_.vectors ? p_.n : p_.k);
      parallel_for(l_.parallel, 0, p_.k, ceil_div(p_.k, slots), [&](int64_t begin, int64_t end) {
        const int64_t count = end - begin;
        if (s_.vectors && row_major && p_.ldb > 1) {  // one column
          for (int64_t k = begin; k < end; ++k) halves_.widen(from + k * p_.ldb, 1, to + k);
        } else if (s_.vectors) {
          for (int64_t c = 0; c < p_.n; ++c) {
            halves_.widen(from + c * p_.ldb + begin, count, to + c * s_.ldb + begin);
          }
        } else if (!row_major) {
          halves_.pack({.b = from + begin,
                        .ldb = p_.ldb,
                        .layout = p_.b_layout,
                        .depth = count,
                        .columns = p_.n,
                        .width = s_.ldb,
                        .strip = to + begin * s_.ldb});
        } else if (p_.ldb == p_.n) {
          halves_.widen(from + begin * p_.n, count * p_.n, to + begin * p_.n);
        } else {
          for (int64_t k = begin; k < end; ++k) {
            halves_.widen(from + k * p_.ldb, p_.n, to + k * p_.n);
          }
        }
      });
    }
  }

  const Half* block_at(int64_t i) const {
    return values_ + load_index(l_.positions, i, p_.index_type) * elements_;
  }

  void widen_blocks(int64_t begin, int64_t end, float* to) const {
    if (l_.positions == nullptr) {
      return halves_.widen(values_ + begin * elements_, (end - begin) * elements_, to);
    }
    constexpr int64_t kAhead = 16;  // blocks: no hardware foresees where they lie
    for (; begin < end; ++begin, to += elements_) {
      __builtin_prefetch(block_at(std::min(begin + kAhead, p_.nnzb - 1)));
      halves_.widen(block_at(begin), elements_, to);
    }
  }

  void multiply(const Slot& slot, int64_t batch, int64_t first, int64_t last) const {
    while (first < last) {
      const int64_t begin = crow_[first];
      int64_t count = 1;  // block rows
      while (first + count < last && count < s_.rows &&
             crow_[first + count + 1] - begin <= s_.blocks) {
        ++count;
      }
      const int64_t end = crow_[first + count];
      if (end - begin > s_.blocks) {
        multiply_long(slot, batch, first);
      } else {
        for (int64_t i = 0; i <= count; ++i) slot.bounds[i] = crow_[first + i] - begin;
        multiply_blocks(slot, batch, first, count, begin, end, slot.sums);
      }
      finish(slot.sums, batch, first, count);
      first += count;
    }
  }

  // A row of which a part is widened at a time.
  void multiply_long(const Slot& slot, int64_t batch, int64_t row) const {
    const int64_t first = crow_[row], last = crow_[row + 1], count = p_.block_m * p_.n;
    for (int64_t begin = first; begin < last; begin += s_.blocks) {
      const int64_t end = std::min(begin + s_.blocks, last);
      slot.bounds[0] = 0;
      slot.bounds[1] = end - begin;
      multiply_blocks(slot, batch, row, 1, begin, end, begin == first ? slot.sums : slot.part);
      for (int64_t i = 0; begin > first && i < count; ++i) slot.sums[i] += slot.part[i];
    }
  }

  // Blocks [begin, end) of `count` rows into sums laid out as C is.
  void multiply_blocks(const Slot& slot, int64_t batch, int64_t row, int64_t count, int64_t begin,
                       int64_t end, float* sums) const {
    widen_blocks(begin, end, slot.values);
    RowsTask task = task_;
    task.values = slot.values;
    task.columns = columns_.from(begin);
    task.crow = slot.bounds;
    task.rows = count;
    task.nnzb = end - begin;
    task.b = b_ + batch * s_.ldb * (s_.vectors ? p_.n : p_.k);
    if (p_.has_bias && begin == crow_[row]) task.bias = bias_ + row * p_.block_m;
    task.out = sums;
    task.out_row = in_rows() ? p_.n : 1;
    task.out_column = in_rows() ? 1 : count * p_.block_m;
    multiply_(task);
  }
  bool in_rows() const { return p_.c_layout == Layout::kRowMajor && p_.n > 1; }

  void finish(float* sums, int64_t batch, int64_t first, int64_t count) const {
    const int64_t rows = count * p_.block_m, row = first * p_.block_m;
    activate_all(sums, rows * p_.n, p_.activation);
    Half* const c = static_cast<Half*>(l_.c) + batch * p_.c_batch_stride;
    const bool row_major = p_.c_layout == Layout::kRowMajor;
    cpu_tiled::StoreTask task{};
    task.tile = sums;
    task.layout = Layout::kRowMajor;
    task.ldc = p_.ldc;
    task.c = c + row * (row_major ? p_.ldc : 1);
    const bool one_line = row_major ? p_.ldc == p_.n : p_.n == 1;
    task.rows = one_line ? 1 : row_major ? rows : p_.n;
    task.columns = one_line ? rows * p_.n : row_major ? p_.n : rows;
    task.tile_stride = task.columns;
    halves_.store(task);
  }

  const Problem& p_;
  const Launch& l_;
  const HalvesShape s_;
  void (*const multiply_)(const RowsTask&);
  const cpu_tiled::Microkernels& halves_;
  const cpu_tiled::Indices crow_, columns_;
  const int64_t rows_, elements_;
  const Half* const values_;
  float* const b_;
  float* const bias_;
  char* const slots_;
  RowsTask task_{};
};

}  // namespace sparse_autotune::cpu_rows
