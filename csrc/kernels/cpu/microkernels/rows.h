// The micro-kernels of cpu_rows: what each instruction-set level implements and rows.cpp calls.
#pragma once

#include "kernels/cpu/microkernels/tiled.h"
#include "operators/product/product.h"

namespace sparse_autotune::cpu_rows {

using cpu_tiled::Indices;

// Block rows `rows` of C = A * B, one after another. Strides are in elements.
struct RowsTask {
  const void* values;  // of all of A
  Indices columns;     // block column of each of A's blocks
  Indices positions;   // where each of A's blocks lies, as wide; null: in order
  Indices crow;        // where each of the rows begins, and the last one ends
  int64_t rows;
  int64_t nnzb;  // of all of A
  int64_t block_m, block_k;
  int64_t row_stride, k_stride;  // in a block
  const void* b;
  int64_t ldb;  // from one column to the next (vectors), or from one row to the next (columns)
  int64_t n;
  const void* bias;  // of the first row, or null
  void* out;         // first element of the first row
  int64_t out_row, out_column;
  void (*activate)(void* data, int64_t count, Activation activation);  // null: none
  Activation activation;
};

// Blocks `begin` to `end` of a sampled product, values = C * B^T. Strides are in elements.
struct SampledTask {
  Indices crow, columns;  // of all of the pattern
  int64_t row;            // that the first block lies in
  int64_t begin, end;
  int64_t block_m, block_k;
  const void* c;
  int64_t c_row, c_column, c_batch;  // strides
  int64_t n, batch;
  const void* b;   // packed: for each block column and each of n * batch terms, block_k elements
  void* expanded;  // scratch: kExpandedVectors vectors a term
  void* values;
};
inline constexpr int64_t kExpandedVectors = 8;

// One level's code for one type.
struct RowKernels {
  int64_t lanes;
  int64_t sampled_elements;  // of a block that sample() takes; block_k is at most `lanes`
  void (*sample)(const SampledTask&);
  void (*vectors)(const RowsTask&);  // B's columns one at a time, lanes along a block's elements
  void (*columns)(const RowsTask&);  // lanes along B's columns
};

// Null when the level has no code for that type, or the processor is not an x86-64.
#if defined(__x86_64__)
const RowKernels* avx2_row_kernels(DType dtype);
const RowKernels* avx512_row_kernels(DType dtype);
#else
inline const RowKernels* avx2_row_kernels(DType) { return nullptr; }
inline const RowKernels* avx512_row_kernels(DType) { return nullptr; }
#endif

}  // namespace sparse_autotune::cpu_rows
