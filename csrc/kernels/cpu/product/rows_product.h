// One launch of cpu_rows; rows.cpp explains the terms.
//
// Of half types a few block rows at a time are widened into L1, multiplied by the code for fp32 and
// narrowed. B is widened before, all of it: it is small beside A.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/microkernels/rows.h"
#include "kernels/cpu/product/rows_shape.h"
#include "kernels/cpu/shared/elements.h"
#include "kernels/cpu/shared/epilogue.h"
#include "kernels/cpu/shared/tiled_partition.h"

namespace sparse_autotune::cpu_rows {

template <typename T>
void activate_sums(void* data, int64_t count, Activation activation) {
  activate_all(static_cast<T*>(data), count, activation);
}

// T: what is accumulated. `types`: the level's code for the problem's dtype.
template <typename T>
class Product {
 public:
  Product(const Problem& p, const Launch& l, const RowKernels& kernels,
          const cpu_tiled::Microkernels& types)
      : p_(p),
        l_(l),
        types_(types),
        s_(shape_of(p, kernels.lanes)),
        multiply_(s_.vectors ? kernels.vectors : kernels.columns),
        crow_{l.crow_indices, p.index_type == IndexType::kInt64},
        rows_(p.m / p.block_m),
        element_(size_of(p.dtype)),
        copy_(static_cast<T*>(l.workspace)),
        b_(s_.b_bytes > 0 ? copy_ : static_cast<const T*>(l.b)),
        b_stride_(s_.b_bytes > 0 ? s_.ldb * (s_.vectors ? p.n : p.k) : p.b_batch_stride),
        sums_(behind(copy_, s_.b_bytes)),
        wide_bias_(behind(sums_, s_.sums_bytes)),
        bias_(s_.bias_bytes > 0 ? wide_bias_ : static_cast<const T*>(l.bias)),
        slots_(reinterpret_cast<char*>(behind(wide_bias_, s_.bias_bytes))) {
    const bool row_major = p.c_layout == Layout::kRowMajor;
    task_.values = l.values;
    task_.columns = {l.col_indices, crow_.wide};
    task_.positions = {l.positions, crow_.wide};
    task_.nnzb = p.nnzb;
    task_.block_m = p.block_m;
    task_.block_k = p.block_k;
    task_.row_stride = row_stride_in_block(p);
    task_.k_stride = k_stride_in_block(p);
    task_.ldb = s_.ldb;
    task_.n = p.n;
    task_.out_row = row_major ? p.ldc : 1;
    task_.out_column = row_major ? 1 : p.ldc;
    if (p.activation != Activation::kNone) task_.activate = activate_sums<T>;
    task_.activation = p.activation;
  }

  void run() const {
    const int64_t slots = cpu_tiled::count_slots(p_, *l_.device);
    if (s_.b_bytes > 0) copy_b(slots);
    if (s_.bias_bytes > 0) types_.widen(l_.bias, p_.m, wide_bias_);
    const int64_t parts = cpu_tiled::parts_of(slots);
    cpu_tiled::for_each_part(l_.parallel, slots, parts * p_.batch, [&](int64_t slot, int64_t i) {
      run_part(slot, i / parts, i % parts, parts);
    });
    if (s_.segment > 0) add_segments();
  }

 private:
  // A thread's widened values, their sums and those of a part of a row, and where block rows begin.
  struct Slot {
    T *values, *sums, *part;
    int64_t* bounds;
  };

  static T* behind(T* memory, int64_t bytes) {
    return memory + bytes / static_cast<int64_t>(sizeof(T));
  }
  Slot slot_at(int64_t i) const {
    T* const values = reinterpret_cast<T*>(slots_ + i * s_.slot_bytes);
    T* const sums = behind(values, s_.values_bytes);
    return {values, sums, behind(sums, s_.part_bytes),
            reinterpret_cast<int64_t*>(behind(sums, 2 * s_.part_bytes))};
  }
  int64_t start(int64_t row) const { return crow_[row] + row; }
  bool is_cut(int64_t row) const { return s_.segment > 0 && length(row) > s_.segment; }
  int64_t length(int64_t row) const { return crow_[row + 1] - crow_[row]; }

  void copy_b(int64_t slots) const {
    const bool row_major = p_.b_layout == Layout::kRowMajor;
    for (int64_t matrix = 0; matrix < p_.batch; ++matrix) {
      const char* const from =
          static_cast<const char*>(l_.b) + matrix * p_.b_batch_stride * element_;
      T* const to = copy_ + matrix * b_stride_;
      const auto widen = [&](int64_t at, int64_t count, T* there) {
        if (is_half(p_.dtype)) return types_.widen(from + at * element_, count, there);
        *there = reinterpret_cast<const T*>(from)[at];  // of one column
      };
      parallel_for(l_.parallel, 0, p_.k, ceil_div(p_.k, slots), [&](int64_t begin, int64_t end) {
        const int64_t count = end - begin;
        if (s_.vectors && row_major && p_.ldb > 1) {  // one column
          for (int64_t k = begin; k < end; ++k) widen(k * p_.ldb, 1, to + k);
        } else if (s_.vectors) {
          for (int64_t c = 0; c < p_.n; ++c) {
            widen(c * p_.ldb + begin, count, to + c * s_.ldb + begin);
          }
        } else if (!row_major) {
          types_.pack({.b = from + begin * element_,
                       .ldb = p_.ldb,
                       .layout = p_.b_layout,
                       .depth = count,
                       .columns = p_.n,
                       .width = s_.ldb,
                       .strip = to + begin * s_.ldb});
        } else if (p_.ldb == p_.n) {
          widen(begin * p_.n, count * p_.n, to + begin * p_.n);
        } else {
          for (int64_t k = begin; k < end; ++k) widen(k * p_.ldb, p_.n, to + k * p_.n);
        }
      });
    }
  }

  // The first row that starts at or behind `at` on a line on which a row is as long as its blocks
  // are many, plus one.
  int64_t first_row(int64_t at) const {
    if (rows_ == 0) return 0;
    const int64_t row = cpu_tiled::row_at(rows_, at, [&](int64_t r) { return start(r); });
    return row + (start(row) < at ? 1 : 0);
  }

  void run_part(int64_t slot, int64_t batch, int64_t part, int64_t parts) const {
    const int64_t line = crow_[rows_] + rows_;
    const int64_t begin = cpu_tiled::part_begin(line, parts, part);
    const int64_t end = cpu_tiled::part_begin(line, parts, part + 1);
    int64_t row = first_row(begin);
    if (s_.segment == 0) {
      return multiply(slot, batch, row, part + 1 == parts ? rows_ : first_row(end));
    }
    if (row > 0 && is_cut(row - 1)) multiply_segments(batch, row - 1, begin, end);
    for (int64_t first = row; row < rows_ && start(row) < end; first = row) {
      while (row < rows_ && start(row) < end && !is_cut(row)) ++row;
      multiply(slot, batch, first, row);
      if (row == rows_ || start(row) >= end) return;
      multiply_segments(batch, row++, begin, end);
    }
  }

  RowsTask task_of(int64_t batch, int64_t row) const {
    RowsTask task = task_;
    task.crow = crow_.from(row);
    task.b = b_ + batch * b_stride_;
    if (p_.has_bias) task.bias = bias_ + row * p_.block_m;
    task.out = static_cast<T*>(l_.c) + batch * p_.c_batch_stride + row * p_.block_m * task_.out_row;
    return task;
  }

  void multiply(int64_t slot, int64_t batch, int64_t first, int64_t last) const {
    if (first >= last) return;
    if (is_half(p_.dtype)) return multiply_halves(slot_at(slot), batch, first, last);
    RowsTask task = task_of(batch, first);
    task.rows = last - first;
    multiply_(task);
  }

  // The sums of the segment that begins at a block: two segments at most of rows that are cut begin
  // between multiples of `segment`, one of them with its row.
  T* sums_at(int64_t batch, int64_t block, bool first) const {
    const int64_t slot =
        2 * (batch * (p_.nnzb / s_.segment + 1) + block / s_.segment) + (first ? 1 : 0);
    return sums_ + slot * p_.block_m * p_.n;
  }

  // Calls visit(begin, end) for each segment of a row.
  template <typename Visit>
  void for_each_segment(int64_t row, Visit&& visit) const {
    const int64_t last = crow_[row + 1];
    for (int64_t begin = crow_[row]; begin < last;) {
      const int64_t end = std::min((begin / s_.segment + 1) * s_.segment, last);
      visit(begin, end);
      begin = end;
    }
  }

  // The segments of a row that start on a part of the line.
  void multiply_segments(int64_t batch, int64_t row, int64_t begin, int64_t end) const {
    for_each_segment(row, [&](int64_t first, int64_t last) {
      if (first + row < begin || first + row >= end) return;
      const int64_t bounds[2] = {first, last};
      RowsTask task = task_of(batch, row);
      task.crow = {bounds, true};
      task.rows = 1;
      task.bias = nullptr;
      task.activate = nullptr;
      task.out = sums_at(batch, first, first == crow_[row]);
      task.out_row = p_.n;
      task.out_column = 1;
      multiply_(task);
    });
  }

  void add_segments() const {
    for (int64_t at = s_.segment; at < p_.nnzb; at += s_.segment) {
      const int64_t row = cpu_tiled::row_at(rows_, at, [&](int64_t r) { return crow_[r]; });
      // The first multiple of `segment` inside the row.
      if (!is_cut(row) || at / s_.segment != crow_[row] / s_.segment + 1) continue;
      for (int64_t batch = 0; batch < p_.batch; ++batch) add_segments_of(batch, row);
    }
  }

  void add_segments_of(int64_t batch, int64_t row) const {
    const RowsTask task = task_of(batch, row);
    T* const total = sums_at(batch, crow_[row], true);
    const int64_t count = p_.block_m * p_.n;
    for_each_segment(row, [&](int64_t begin, int64_t) {
      if (begin == crow_[row]) return;
      const T* const part = sums_at(batch, begin, false);
      for (int64_t i = 0; i < count; ++i) total[i] += part[i];
    });
    for (int64_t r = 0; r < p_.block_m; ++r) {
      const T bias = task.bias == nullptr ? T(0) : static_cast<const T*>(task.bias)[r];
      T* const row = total + r * p_.n;
      for (int64_t c = 0; c < p_.n; ++c) row[c] += bias;
      activate_all(row, p_.n, p_.activation);
      T* const out = static_cast<T*>(task.out) + r * task.out_row;
      for (int64_t c = 0; c < p_.n; ++c) out[c * task.out_column] = row[c];
    }
  }

  void widen_blocks(int64_t begin, int64_t end, T* to) const {
    const int64_t elements = p_.block_m * p_.block_k;
    const auto block = [&](int64_t position) {
      return static_cast<const char*>(l_.values) + position * elements * element_;
    };
    const Indices positions = task_.positions;
    if (positions.data == nullptr) {
      return types_.widen(block(begin), (end - begin) * elements, to);
    }
    constexpr int64_t kAhead = 16;  // blocks: no hardware foresees where they lie
    for (; begin < end; ++begin, to += elements) {
      __builtin_prefetch(block(positions[std::min(begin + kAhead, p_.nnzb - 1)]));
      types_.widen(block(positions[begin]), elements, to);
    }
  }

  void multiply_halves(const Slot& slot, int64_t batch, int64_t first, int64_t last) const {
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

  // A row of so many blocks that a part of it is widened at a time.
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
                       int64_t end, T* sums) const {
    widen_blocks(begin, end, slot.values);
    const bool in_rows = p_.c_layout == Layout::kRowMajor && p_.n > 1;
    RowsTask task = task_of(batch, row);
    task.values = slot.values;
    task.columns = task_.columns.from(begin);
    task.positions = {};
    task.crow = {slot.bounds, true};
    task.rows = count;
    task.nnzb = end - begin;
    if (begin != crow_[row]) task.bias = nullptr;
    task.activate = nullptr;
    task.out = sums;
    task.out_row = in_rows ? p_.n : 1;
    task.out_column = in_rows ? 1 : count * p_.block_m;
    multiply_(task);
  }

  void finish(T* sums, int64_t batch, int64_t first, int64_t count) const {
    const int64_t rows = count * p_.block_m, row = first * p_.block_m;
    activate_all(sums, rows * p_.n, p_.activation);
    char* const c = static_cast<char*>(l_.c) + batch * p_.c_batch_stride * element_;
    const bool row_major = p_.c_layout == Layout::kRowMajor;
    cpu_tiled::StoreTask task{};
    task.tile = sums;
    task.layout = Layout::kRowMajor;
    task.ldc = p_.ldc;
    task.c = c + row * task_.out_row * element_;
    const bool one_line = row_major ? p_.ldc == p_.n : p_.n == 1;
    task.rows = one_line ? 1 : row_major ? rows : p_.n;
    task.columns = one_line ? rows * p_.n : row_major ? p_.n : rows;
    task.tile_stride = task.columns;
    types_.store(task);
  }

  const Problem& p_;
  const Launch& l_;
  const cpu_tiled::Microkernels& types_;
  const Shape s_;
  void (*const multiply_)(const RowsTask&);
  const Indices crow_;
  const int64_t rows_, element_;
  T* const copy_;
  const T* const b_;
  const int64_t b_stride_;
  T* const sums_;
  T* const wide_bias_;
  const T* const bias_;
  char* const slots_;
  RowsTask task_{};
};

}  // namespace sparse_autotune::cpu_rows
