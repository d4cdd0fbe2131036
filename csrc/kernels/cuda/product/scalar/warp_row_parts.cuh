// What the kernels of warp_rows work on: the parts of block rows, and where they lie.
//
// A row of many blocks is multiplied in segments of the stream of all stored blocks, by as many
// groups of lanes, wherever it begins: where it does, a search in crow_indices tells, so nothing
// is planned. Their sums go through scratch memory, and sum_segments_kernel adds them up in order.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/activation.h"
#include "kernels/cuda/device/accumulator.cuh"
#include "kernels/cuda/device/product_arguments.cuh"
#include "kernels/cuda/product/scalar/load_words.cuh"
#include "kernels/cuda/product/scalar/sum_parts.cuh"
#include "variant.h"

namespace sparse_autotune {

struct WarpRowsArguments : ProductArguments {
  void* partials;  // sums of segments, in the accumulator's type
  int* heads;      // the long row that begins in each stretch of stored blocks, or -1
  int64_t b_batch, c_batch_stride;
  // Bytes from one row (of B, k) or column to the next; `b_block`: of block_k rows; of a block.
  int64_t b_column;
  int b_k, b_block, a_block, a_row, a_k;
  int c_row, c_column;  // elements
  int rows;             // block rows
  int nnzb, n, block_m;
  int vectors;  // of kVectorK k, in a block
  int limit;    // a row of more blocks is multiplied in segments of at most as many
  unsigned strips;
  unsigned segments;  // tasks that are a segment's strip, before those that are a row's
  unsigned tasks;     // in all
  unsigned turns;     // tasks of a group, one after another
  unsigned slots;     // segments, two for each stretch
  // Over what a group's lanes lie, how often, and 2^16 over that, rounded up.
  int log_lanes, blocks, row_lanes, vector_lanes, column_lanes;
  unsigned by_row_lanes, by_vector_lanes, by_column_lanes;
  int half_blocks,
      half_vectors;  // the largest power of two below `blocks` and `vector_lanes`, or 0
};

constexpr int kRowsThreads = 128;

// The block row that a stored block belongs to: by all lanes of a group, which divide what is left.
__device__ __forceinline__ int row_of_block(const WarpRowsArguments& a, int block, int lane) {
  const int bytes = a.wide_indices ? 8 : 4, lanes = 1 << a.log_lanes;
  const int first_lane = static_cast<int>(threadIdx.x) % 32 - lane;
  const unsigned group = (lanes == 32 ? ~0u : (1u << lanes) - 1) << first_lane;
  int low = 0, high = a.rows;  // the first block of `low` is not behind it, that of `high` is
  while (high - low > 1) {
    const int step = (high - low + lanes - 1) >> a.log_lanes;
    const int probe = low + (lane + 1) * step;
    const bool before = probe < high && index_at(a.crow_indices, probe, bytes) <= block;
    low += __popc(__ballot_sync(group, before) & group) * step;
    high = min(low + step, high);
  }
  return low;
}

// What a group multiplies: the blocks [begin, end) of a row; row -1: nothing. A row of more than
// `limit` blocks begins in one stretch of `limit` stored blocks and goes on in others: in each
// stretch at most one such row begins (segment 2 * stretch + 1) and one goes on (2 * stretch).
struct RowPart {
  int row = -1, begin = 0, end = 0, segment = -1;
};

__device__ __forceinline__ RowPart segment_part(const WarpRowsArguments& a, int segment, int lane) {
  const int bytes = a.wide_indices ? 8 : 4;
  const bool begins = segment % 2 != 0;
  const int first = segment / 2 * a.limit;
  const int last = a.nnzb - first > a.limit ? first + a.limit : a.nnzb;
  const int row = row_of_block(a, begins ? last - 1 : first, lane);
  const int row_begin = index_at(a.crow_indices, row, bytes);
  const int row_end = index_at(a.crow_indices, row + 1, bytes);
  if (row_end - row_begin <= a.limit || (row_begin >= first) != begins) return {};
  return {row, begins ? row_begin : first, min(row_end, last), segment};
}

// A row's place: its number, its blocks, and the strip of it that is asked for.
struct Place {
  int row = -1, begin = 0, end = 0, strip = 0;
};

// Asks lines into L2: every `step`th from number `first` on.
__device__ __forceinline__ void ask_lines(const char* begin, const char* end, int first, int step) {
  constexpr int kLine = 128, kMost = 4;  // of a lane: all groups' lines must stay in L2
  const char* at = begin + int64_t{first} * kLine;
#pragma unroll 1
  for (int i = 0; i < kMost && at < end; ++i, at += int64_t{step} * kLine) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
  }
}

constexpr int kStretchesEach = 8;

// Adds up the segments of the rows that begin in kStretchesEach stretches: a fixed share of a row's
// by each thread, then the threads of an element, both in order.
template <typename T>
__global__ void __launch_bounds__(kRowsThreads)
    sum_segments_kernel(const __grid_constant__ WarpRowsArguments a) {
  using Acc = typename Accumulator<T>::Type;
  __shared__ Acc sums[kRowsThreads];
  const int elements = a.block_m * a.n;
  const int width = min(elements, kRowsThreads);  // elements at one time
  const int sharers = kRowsThreads / width;
  const int me = static_cast<int>(threadIdx.x), share = me / width;
  const Acc* from = static_cast<const Acc*>(a.partials) + int64_t{blockIdx.y} * a.slots * elements;
  T* const c = static_cast<T*>(a.c) + blockIdx.y * a.c_batch_stride;

  for (int i = 0; i < kStretchesEach; ++i) {
    const int stretch = static_cast<int>(blockIdx.x) * kStretchesEach + i;
    if (2 * static_cast<unsigned>(stretch) >= a.slots) return;
    const int row = a.heads[stretch];
    if (row < 0) continue;  // all threads
    const int row_end = index_at(a.crow_indices, row + 1, a.wide_indices ? 8 : 4);
    const int parts = (row_end - 1) / a.limit - stretch + 1;
    for (int first = 0; first < elements; first += width) {
      const int element = first + me % width;
      const bool is_in = share < sharers && element < elements;
      const Acc sum = sum_parts(parts, share, sharers, width, is_in, sums, [&](int part) {
        const int64_t segment = 2 * (int64_t{stretch} + part) + (part == 0 ? 1 : 0);
        return __ldcg(from + segment * elements + element);
      });
      if (share != 0 || !is_in) continue;
      const int c_row = row * a.block_m + element / a.n;
      c[int64_t{c_row} * a.c_row + int64_t{element % a.n} * a.c_column] =
          finish_sum<T>(sum, a.bias, c_row, a.activation);
    }
  }
}

}  // namespace sparse_autotune
