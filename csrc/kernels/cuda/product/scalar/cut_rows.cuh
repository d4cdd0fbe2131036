// Block rows that are cut into listed parts, a plan's or those that a kernel here finds, and the
// kernel that adds up the parts' sums.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/device/accumulator.cuh"
#include "kernels/cuda/device/load_index.cuh"
#include "kernels/cuda/product/scalar/sum_parts.cuh"
#include "operators/product/product.h"
#include "row_orders.h"

namespace sparse_autotune {

// Block rows longer than a limit, in parts: lists of these, as a plan has them of its orders. They
// are made anew for each launch, as a matrix of small blocks may have more rows than its plan
// orders. In which order rows enter them is left to chance; each row's parts are neighbours and
// their sums are added in the order of their numbers, so no result depends on it.

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

struct CutRowSums {
  const CutRow* rows;
  // Of each part lines of C, rows or columns, `pitch` elements of the accumulator's type apart,
  // whole words of 16 bytes; the batch outside.
  const void* partials;
  const void* bias;
  void* c;
  int64_t ldc, c_batch_stride, batch;      // matrices
  int slots, lines, pitch, line_elements;  // slots: parts of all rows
  int block_m;
  Activation activation;
  bool c_rows;
};

constexpr int kCutRowWarps = 8;

// A thread block for each cut row, 32 words of its sums and each matrix of the batch. Its warps
// share out the parts; their sums are added up in the warps' order.
template <typename T>
__global__ void __launch_bounds__(kCutRowWarps * 32)
    add_cut_rows_kernel(const __grid_constant__ CutRowSums args) {
  using Acc = typename Accumulator<T>::Type;
  constexpr int kWord = 16 / static_cast<int>(sizeof(Acc));
  using Word = Several<Acc, kWord>;
  __shared__ Word sums[kCutRowWarps * 32];
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const CutRow cut = load_entry(args.rows, blockIdx.x);
  const int elements = args.lines * args.pitch;
  for (int64_t batch = blockIdx.z; batch < args.batch; batch += gridDim.z) {
    const Acc* from =
        static_cast<const Acc*>(args.partials) + (batch * args.slots + cut.first) * elements;
    T* const c = static_cast<T*>(args.c) + batch * args.c_batch_stride;
    for (int first = static_cast<int>(blockIdx.y) * 32 * kWord; first < elements;
         first += static_cast<int>(gridDim.y) * 32 * kWord) {
      const int place = first + lane * kWord;
      const bool is_in = place < elements;
      const Word sum = sum_parts(cut.parts, warp, kCutRowWarps, 32, is_in, sums, [&](int part) {
        const uint4 word =
            __ldcg(reinterpret_cast<const uint4*>(from + int64_t{part} * elements + place));
        return *reinterpret_cast<const Word*>(&word);
      });
      if (warp != 0 || !is_in) continue;
      const int line = place / args.pitch, element = place - line * args.pitch;
      const int row = cut.row * args.block_m + (args.c_rows ? line : element);
      T* const to = c + (args.c_rows ? row * args.ldc + element : line * args.ldc + row);
#pragma unroll
      for (int e = 0; e < kWord; ++e) {
        if (element + e >= args.line_elements) break;
        to[e] = finish_sum<T>(sum.of[e], args.bias, row + (args.c_rows ? 0 : e), args.activation);
      }
    }
  }
}

// Host code. `rows`: that were cut.
template <typename T>
cudaError_t add_cut_rows(const CutRowSums& sums, int64_t rows, void* stream) {
  constexpr int64_t kBytes = 32 * 16, kMaxGrid = 65535;
  const int64_t bytes = int64_t{sums.lines} * sums.pitch * std::max<int64_t>(sizeof(T), 4);
  const dim3 blocks(static_cast<unsigned>(rows),
                    static_cast<unsigned>(std::min(ceil_div(bytes, kBytes), kMaxGrid)),
                    static_cast<unsigned>(std::min(sums.batch, kMaxGrid)));
  add_cut_rows_kernel<T><<<blocks, kCutRowWarps * 32, 0, static_cast<cudaStream_t>(stream)>>>(sums);
  return cudaGetLastError();
}

}  // namespace sparse_autotune
