// The micro-kernels of sampled_dots: what each instruction-set level implements and
// sampled_dots.cpp calls.
#pragma once

#include "kernels/cpu/microkernels/tiled.h"

namespace sparse_autotune::cpu_dots {

inline constexpr int64_t kMostSide = 16;  // of a block: larger ones fill vectors by their columns

// Blocks of one block row: sums (one block after another) = rows of C * rows of B, over all chunks.
// A chunk is some terms, `depth` of them: rows of both operands packed one after another. Strides
// are in elements.
struct DotsTask {
  const void* c;    // first chunk, first row of the block row
  int64_t c_chunk;  // from one chunk to the next
  const void* b;    // first chunk, block column 0
  int64_t b_chunk;
  int64_t chunks;
  int64_t depth;               // whole vectors
  cpu_tiled::Indices columns;  // of each block
  int64_t count;               // blocks
  int64_t block_m, block_k;
  void* sums;
  bool add;  // to what the sums are already
};

// One level's code for one accumulator.
struct DotsKernels {
  int64_t lanes;
  void (*dots)(const DotsTask&);
};

// Half types have those of fp32. Null where the processor is not an x86-64.
#if defined(__x86_64__)
const DotsKernels* avx2_dots_kernels(DType dtype);
const DotsKernels* avx512_dots_kernels(DType dtype);
#else
inline const DotsKernels* avx2_dots_kernels(DType) { return nullptr; }
inline const DotsKernels* avx512_dots_kernels(DType) { return nullptr; }
#endif

}  // namespace sparse_autotune::cpu_dots
