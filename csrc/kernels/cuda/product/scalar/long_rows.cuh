// Block rows longer than a limit, in parts: a list of these, and the end of their sums.
//
// The lists are made anew for each launch, as a matrix of small blocks may have more rows than its
// plan orders. In which order rows enter them is left to chance; each row's parts are neighbours
// and their sums are added in the order of their numbers, so no result depends on it.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/accumulator.cuh"
#include "kernels/cuda/device/load_index.cuh"
#include "kernels/cuda/product/scalar/column_strips.cuh"
#include "kernels/cuda/product/scalar/sum_parts.cuh"
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

// A thread block finishes 32 columns of one row of a cut block row; its warps share out the parts.
template <typename T, int kWarps>
__global__ void __launch_bounds__(kWarps * 32)
    sum_long_rows_kernel(const __grid_constant__ StripArguments args, const CutRow* rows,
                         int64_t batch_count) {
  using Acc = typename Accumulator<T>::Type;
  __shared__ Acc sums[kWarps * 32];
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const int4 cut = __ldg(reinterpret_cast<const int4*>(rows) + blockIdx.x / args.block_m);
  const auto r = static_cast<int>(blockIdx.x % args.block_m);
  const int64_t row = int64_t{cut.x} * args.block_m + r, step = args.block_m * args.partial_pitch;
  for (int64_t batch = blockIdx.z; batch < batch_count; batch += gridDim.z) {
    for (int64_t n0 = int64_t{blockIdx.y} * 32; n0 < args.n; n0 += int64_t{gridDim.y} * 32) {
      const int64_t column = n0 + lane;
      const Acc* from = static_cast<const Acc*>(args.partials) +
                        (batch * args.slots + cut.y) * step + r * args.partial_pitch + column;
      Acc sum = sum_parts(cut.z, warp, kWarps, 32, column < args.n, sums,
                          [&](int part) { return from[part * step]; });
      if (warp == 0 && column < args.n) {
        if (args.bias != nullptr) sum += static_cast<Acc>(static_cast<const T*>(args.bias)[row]);
        static_cast<T*>(args.c)[batch * args.c_batch + row * args.ldc + column] =
            static_cast<T>(activate(sum, args.activation));
      }
    }
  }
}

}  // namespace sparse_autotune
