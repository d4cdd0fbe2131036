// Block rows longer than a limit, in parts: a list of these, as a plan has it of its orders.
//
// The lists are made anew for each launch, as a matrix of small blocks may have more rows than its
// plan orders. In which order rows enter them is left to chance; each row's parts are neighbours
// and their sums are added in the order of their numbers, so no result depends on it.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/load_index.cuh"
#include "row_orders.h"

namespace sparse_autotune {

struct LongRows {
  OrderedRow* parts;
  CutRow* rows;
  int* counts;  // of rows and of parts, so far
};

template <int kThreads>
__global__ void __launch_bounds__(kThreads)
    find_long_rows_kernel(const void* crow_indices, bool wide, int block_rows, int limit,
                          LongRows found) {
  const int row = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (row >= block_rows) return;
  const int begin = load_narrow_index(crow_indices, row, wide);
  const int blocks = load_narrow_index(crow_indices, row + 1, wide) - begin;
  if (blocks <= limit) return;
  const int parts = parts_of(blocks, limit);
  const int first = atomicAdd(found.counts + 1, parts);
  found.rows[atomicAdd(found.counts, 1)] = {row, first, parts, 0};
  for (int part = 0; part < parts; ++part) {
    found.parts[first + part] = {row, begin + part_begin(blocks, parts, part),
                                 begin + part_begin(blocks, parts, part + 1), first + part};
  }
}

}  // namespace sparse_autotune
