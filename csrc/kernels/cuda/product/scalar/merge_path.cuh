// What a kernel over equal shares of stored blocks and row ends works on, where a share begins, and
// how the rows end that shares cut.
//
// Block rows one behind the other, each its stored blocks and then its end, are a path of
// nnzb + rows items, of which a thread block owns a share as long as every other's: a search in
// crow_indices tells in which row it begins. Sums of the parts of a cut row go to scratch memory,
// and the last of its shares to end adds them up, in the order of the path.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/product_arguments.cuh"
#include "kernels/cuda/product/scalar/load_words.cuh"
#include "kernels/cuda/product/scalar/sum_parts.cuh"
#include "variant.h"

namespace sparse_autotune {

struct MergeRowsArguments : ProductArguments {
  void* partials;      // sums of cut rows, in the accumulator's type
  unsigned* counters;  // of each share and strip: shares of the row cut at its end that have ended
  int64_t b_batch;     // bytes
  int64_t c_batch;
  int n;
  int b_k;              // bytes from one row of B to the next
  int c_row, c_column;  // bytes, of C
  int rows;             // block rows
  int items;            // of the path
  int share;            // of them, of a thread block
  int limit;            // blocks of a row that no border cuts, at most
  int chunk;            // blocks at one time
  // Where things lie in shared memory: the columns of a chunk behind its values, the next chunk,
  // where the rows of one end, the sums of runs.
  int columns_at, next_at, ends_at, sums_at;
  int column_lanes, groups;
  unsigned by_column_lanes;  // 2^16 over them, rounded up
  bool stores_words;         // of 16 bytes
};

constexpr int kMergeThreads = 256;
// The row that an item of the path belongs to: by a warp, whose lanes divide what is left. Row
// `rows` is that of what lies behind the path.
__device__ __forceinline__ int row_of_item(const MergeRowsArguments& a, int item) {
  constexpr int kProbes = 2;  // of a lane
  const int bytes = a.wide_indices ? 8 : 4, lane = static_cast<int>(threadIdx.x % 32);
  int low = 0, high = a.rows + 1;  // `low` does not begin behind the item, `high` does
  while (high - low > 1) {
    const int step = (high - low + kProbes * 32 - 1) / (kProbes * 32);
    bool before[kProbes];
#pragma unroll
    for (int i = 0; i < kProbes; ++i) {
      const int probe = low + (i * 32 + lane + 1) * step;
      before[i] = probe < high && index_at(a.crow_indices, probe, bytes) + probe <= item;
    }
    int count = 0;
#pragma unroll
    for (int i = 0; i < kProbes; ++i) count += __popc(__ballot_sync(~0u, before[i]));
    low += count * step;
    high = min(low + step, high);
  }
  return low;
}

// Where a share begins: its first row, whether that began in a share before, its first block.
struct MergeBorder {
  int row, cut, block;
};

// Between `number` shares and the others. A border in a row of few blocks lies where the row
// begins, so that none but long rows are cut. By a warp.
__device__ __forceinline__ MergeBorder merge_border(const MergeRowsArguments& a, int number) {
  const int item = min(number * a.share, a.items), row = row_of_item(a, item);
  if (row == a.rows) return {row, 0, item - row};
  const int bytes = a.wide_indices ? 8 : 4;
  const int begin = index_at(a.crow_indices, row, bytes);
  const int blocks = index_at(a.crow_indices, row + 1, bytes) - begin;
  const bool is_whole = blocks <= a.limit || begin + row == item;
  return {row, is_whole ? 0 : 1, is_whole ? begin : item - row};
}

// One element of C, from its sum, which null leaves where it is.
template <typename T>
__device__ __forceinline__ void finish_element(const MergeRowsArguments& a, int row, int column,
                                               const T* sum) {
  char* const to = static_cast<char*>(a.c) + blockIdx.z * a.c_batch + int64_t{row} * a.c_row +
                   int64_t{column} * a.c_column;
  T* const at = reinterpret_cast<T*>(to);
  *at = finish_sum<T>(sum == nullptr ? *at : *sum, a.bias, row, a.activation);
}

// A row that shares cut, from its sums: by all threads.
template <typename T, int kBlock>
__device__ __forceinline__ void finish_cut_row(const MergeRowsArguments& a, T* scratch, int row,
                                               int first, int last, int first_column) {
  const int pitch = a.column_lanes * (16 / static_cast<int>(sizeof(T))), elements = kBlock * pitch;
  const int width = min(elements, kMergeThreads), sharers = kMergeThreads / width;
  const int me = static_cast<int>(threadIdx.x), part = me / width;
  const int64_t task = int64_t{blockIdx.z} * gridDim.y + blockIdx.y;
  const T* const from = static_cast<const T*>(a.partials) + task * 2 * gridDim.x * elements;
  for (int begin = 0; begin < elements; begin += width) {
    const int element = begin + me % width, column = first_column + element % pitch;
    const bool is_in = part < sharers && element < elements && column < a.n;
    const T sum = sum_parts(last - first + 1, part, sharers, width, is_in, scratch, [&](int i) {
      const int64_t slot = 2 * int64_t{first + i} + (first + i == last ? 0 : 1);
      return __ldcg(from + slot * elements + element);
    });
    if (!is_in || part != 0) continue;
    finish_element(a, row * kBlock + element / pitch, column, &sum);
  }
}

}  // namespace sparse_autotune
