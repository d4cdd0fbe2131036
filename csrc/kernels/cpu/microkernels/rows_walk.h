// How cpu_rows' micro-kernels walk over blocks; rows_microkernel.h includes it.
#pragma once

#include "kernels/cpu/microkernels/rows.h"

namespace sparse_autotune::cpu_rows {
namespace {

// The walk over a row's blocks: where the values of each lie and which rows of B it meets.
// kInOrder: in order, as the caller knows.
template <class L, bool kInOrder>
struct Walk {
  using T = typename L::T;
  const T* values;         // of the next block, or of all of A
  const uint32_t* column;  // of the next block: the lower halves of int64, as none is 2^32 or more
  const char* position;    // of the next block
  int64_t step;            // from one column to the next
  int64_t elements, b_stride;
  bool wide;
  const char* last_position;

  // Of rows of blocks from `first` on.
  SPARSE_AUTOTUNE_INLINE Walk(const RowsTask& t, int64_t begin, int64_t first, int64_t stride_of_b)
      : values(static_cast<const T*>(t.values) + first * t.row_stride),
        column(static_cast<const uint32_t*>(t.columns.data)),
        position(static_cast<const char*>(t.positions.data)),
        step(t.columns.wide ? 2 : 1),
        elements(t.block_m * t.block_k),
        b_stride(stride_of_b),
        wide(t.columns.wide),
        last_position(in_order() ? nullptr : position + (t.nnzb - 1) * step * 4) {
    column += begin * step;
    if (in_order()) {
      values += begin * elements;
    } else {
      position += begin * step * 4;
    }
  }
  SPARSE_AUTOTUNE_INLINE bool in_order() const { return kInOrder || position == nullptr; }
  // To the next block. Each address is kept by itself: derived from each other they would need more
  // registers than there are.
  SPARSE_AUTOTUNE_INLINE void next(const T** a, int64_t* b) {
    *b = static_cast<int64_t>(*column) * b_stride;
    column += step;
    asm("" : "+r"(column));
    if (in_order()) {
      *a = values;
      values += elements;
      asm("" : "+r"(values));
    } else {
      *a = values + Indices{position, wide}[0] * elements;
      position += step * 4;
    }
  }
  // Fetches `bytes` of what lies some way ahead, at least a line: a walk of short steps is faster
  // than the hardware fetches. Of scattered blocks a later one.
  SPARSE_AUTOTUNE_INLINE void fetch(int64_t bytes) const {
    constexpr int64_t kAheadBytes = 1024, kBlocksAhead = 8, kLine = 64;
    const char* from = reinterpret_cast<const char*>(values) + kAheadBytes;
    if (!in_order()) {
      const char* const later = position + kBlocksAhead * step * 4;
      const Indices at{later < last_position ? later : last_position, wide};
      from = reinterpret_cast<const char*>(values + at[0] * elements);
    }
    do {
      __builtin_prefetch(from);
      from += kLine;
      bytes -= kLine;
    } while (bytes > 0);
  }
};

}  // namespace
}  // namespace sparse_autotune::cpu_rows
