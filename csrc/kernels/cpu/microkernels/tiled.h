// The micro-kernels of cpu_tiled: what each instruction-set level implements and tiled.cpp calls.
//
// A *strip* is a few vectors of B's columns; a *tile* is a few rows of one block row times one
// strip, held in registers while the walk over the block row's blocks goes on. Sizes and strides
// are in elements of `values` and of the strip: for AVX512-BF16 an element is
// two neighbours along k, 32 bits.
#pragma once

#include "variant.h"

namespace sparse_autotune::cpu_tiled {

inline constexpr int64_t kLineBytes = 64;

// Block-index arrays of either type.
struct Indices {
  const void* data;
  bool wide;
  int64_t operator[](int64_t i) const {
    return wide ? static_cast<const int64_t*>(data)[i] : static_cast<const int32_t*>(data)[i];
  }
  Indices from(int64_t i) const {
    return {static_cast<const char*>(data) + i * (wide ? 8 : 4), wide};
  }
};

// Where multiply() writes: to scratch that is in L1, or to rows of C, which it fetches while it
// multiplies, or writes past the caches (they are then aligned to a vector).
enum class Output : uint8_t { kScratch, kResult, kStreamed };

// Rows of B that a later task reads and no hardware foresees: the task fetches `vectors` vectors of
// each, dealt out over its walk. With `count`, `rows` are those of each of that many block columns
// and are fetched one block after the other; without, they are all rows.
struct Fetch {
  const void* b;  // first row; that of block column 0 with `count`
  int64_t row_stride;
  int64_t rows;
  int64_t burst;  // rows every kStepsPerFetch steps along k
  Indices columns;
  int64_t count;
  int64_t block_stride;
};
inline constexpr int64_t kStepsPerFetch = 16;

// out (rows x vectors) = init, or bias where there is no init, + sum over blocks of A * B.
struct MultiplyTask {
  const void* values;    // first block, first row of the tile
  int64_t block_stride;  // from one block to the next
  int64_t row_stride;
  Indices columns;  // block column of each block; null: 0, 1, 2, ...
  int64_t count;    // blocks
  int64_t depth;    // elements along k of each block
  const void* b;    // block column 0, first column of the strip
  int64_t b_block_stride;
  int64_t b_row_stride;
  const void* init;  // accumulators to go on from, or null
  int64_t init_stride;
  const void* bias;  // one accumulator a row, read when init is null
  void* out;
  int64_t out_stride;
  Output output;
  int rows;     // 1 ... Microkernels::rows_of(vectors)
  int vectors;  // 1 ... Microkernels::vectors
  void* state;  // kStateBytes of the thread's, zero before its first task: the level's own
  const void* next_values;  // the next task's, fetched while this one runs; a level may leave it
  Fetch fetch;              // of elements as they are stored; else without effect
};
inline constexpr int64_t kStateBytes = 64;

// The task of cpu_turned: out (rows x vectors of a block row's own rows) = bias + sum over blocks
// of B^T * A^T. Strides are in elements.
struct TurnedTask {
  const void* values;       // the tile's strip of A^T's blocks: depth x vectors
  Indices positions;        // where the row's blocks lie; null: in order, from `values` on
  Indices columns;          // block column of each block
  int64_t count;            // blocks
  int64_t block_stride;     // from one position to the next
  int64_t depth;            // along k of each block
  const void* b;            // packed rows of B, turned_width() wide
  const void* bias;         // a value each of the block row's own rows, or null
  const void* next_values;  // the next task's first block, fetched meanwhile
  void* out;
  int64_t out_stride;
  int rows;     // 1 ... Microkernels::turned_rows
  int vectors;  // 1 ... kTurnedVectors
};
inline constexpr int kTurnedVectors = 2;
constexpr int turned_width(int rows, int lanes) { return (rows + lanes - 1) / lanes * lanes; }

// Copies rows of B into a strip (depth x width), widened or paired as the level wants it, with
// zeros in the columns from `columns` to `width`.
struct PackTask {
  const void* b;  // first row, first column
  int64_t ldb;
  Layout layout;
  int64_t depth;  // rows of B
  int64_t columns;
  int64_t width;
  void* strip;
};

// Writes accumulators (rows x columns) as C's type and layout.
struct StoreTask {
  const void* tile;
  int64_t tile_stride;
  int64_t rows;
  int64_t columns;
  void* c;
  int64_t ldc;
  Layout layout;
};

// One level's code for one type. Functions that a level does not need are null.
struct Microkernels {
  int64_t lanes;  // accumulators in a vector
  int64_t rows;   // of a tile, at most
  int64_t vectors;
  int64_t sums;  // rows times vectors, at most
  int64_t pair;  // neighbours along k in an element: 2 for bf16 pairs, else 1
  void (*multiply)(const MultiplyTask&);
  void (*pack)(const PackTask&);
  // To accumulators; null when multiply() reads the values as they are stored.
  void (*widen)(const void* from, int64_t count, void* to);
  void (*store)(const StoreTask&);
  void (*release)();  // after a thread's last task
  // Where values are stored as they are accumulated, else null.
  void (*turned)(const TurnedTask&);
  int64_t turned_rows;  // of its largest tile

  int64_t rows_of(int64_t wide) const { return sums / wide < rows ? sums / wide : rows; }
};

// Null when the level has no code for that type, or the processor is not an x86-64.
#if defined(__x86_64__)
const Microkernels* avx2_kernels(DType dtype);
const Microkernels* avx512_kernels(DType dtype);
const Microkernels* avx512_bf16_kernels(DType dtype);
const Microkernels* amx_kernels(DType dtype);
#else
inline const Microkernels* avx2_kernels(DType) { return nullptr; }
inline const Microkernels* avx512_kernels(DType) { return nullptr; }
inline const Microkernels* avx512_bf16_kernels(DType) { return nullptr; }
inline const Microkernels* amx_kernels(DType) { return nullptr; }
#endif

}  // namespace sparse_autotune::cpu_tiled
