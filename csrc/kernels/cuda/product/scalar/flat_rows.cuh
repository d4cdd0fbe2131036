// A sparse matrix times a vector, whatever the lengths of its rows: the kernel.
//
// A thread block owns neighbouring block rows, a thread for each row of C. Their stored blocks are
// one run, taken in chunks: a row of a block is an item, items are dealt out to threads in order,
// wherever block rows end. What an item adds to its row of C goes to shared memory, from where a
// thread adds up a row of C, a warp one of many blocks. So the time depends on how many blocks
// there are, and hardly on which rows they are in.
//
// A row beyond a limit is multiplied by several thread blocks, in segments of the stream of all
// stored blocks: which row a segment belongs to, a search in crow_indices tells. The last of a
// row's to end adds up the sums of all, in order.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/device/accumulator.cuh"
#include "kernels/cuda/device/product_arguments.cuh"
#include "kernels/cuda/product/scalar/load_words.cuh"
#include "kernels/cuda/product/scalar/sum_parts.cuh"
#include "variant.h"

namespace sparse_autotune {

struct FlatRowsArguments : ProductArguments {
  void* partials;      // sums of segments, in the accumulator's type
  unsigned* counters;  // of each stretch: ended segments of the long row that begins in it
  int64_t b_batch, c_batch_stride;
  int64_t c_row;            // elements from one row of C to the next
  int a_block, a_row, a_k;  // bytes of a block, from one row or k of it to the next
  int rows, nnzb, block_m;
  int rows_each;        // block rows of a thread block
  int chunk;            // blocks at one time
  int limit;            // a row of more blocks is multiplied in segments of at most as many
  int segments;         // two for each stretch of `limit` stored blocks
  unsigned by_block_m;  // 2^31 over it, rounded up
};

constexpr int kFlatThreads = 128;

// The rows of a block, an item, whose loads a thread has on their way at one time.
template <typename T, int kBlockK>
constexpr int kFlatItems = kBlockK * sizeof(T) > 32 ? 2 : 4;

// The block row that a stored block belongs to: by all threads, which divide what is left.
__device__ __forceinline__ int row_of_block(const FlatRowsArguments& a, int block) {
  const int bytes = a.wide_indices ? 8 : 4;
  int low = 0, high = a.rows;  // the first block of `low` is not behind it, that of `high` is
  while (high - low > 1) {
    const int step = (high - low + kFlatThreads - 1) / kFlatThreads;
    const int probe = low + (static_cast<int>(threadIdx.x) + 1) * step;
    const bool before = probe < high && index_at(a.crow_indices, probe, bytes) <= block;
    low += __syncthreads_count(before) * step;
    high = min(low + step, high);
  }
  return low;
}

// What items add to their rows of C: an item is row `item % block_m` of the stored block
// `first + item / block_m`. A thread's are `apart`; behind `last` it takes that one again.
template <typename T, int kBlockK, bool kTransposed, int kItems, typename Acc>
__device__ __forceinline__ void multiply_items(const FlatRowsArguments& a, const char* b, int first,
                                               int item, int apart, int last, Acc (&sum)[kItems]) {
  constexpr int kItem = static_cast<int>(sizeof(T));
  const int bytes = a.wide_indices ? 8 : 4;
  int place[kItems], row[kItems], column[kItems];
#pragma unroll
  for (int u = 0; u < kItems; ++u) {
    const int own = min(item + u * apart, last);
    const int block = static_cast<int>(__umulhi(2 * own, a.by_block_m));
    row[u] = own - block * a.block_m;
    place[u] = first + block;
    column[u] = index_at(a.col_indices, place[u], bytes);
    if (kTransposed) place[u] = index_at(a.positions, place[u], bytes);
  }
  T left[kItems][kBlockK], right[kItems][kBlockK];
#pragma unroll
  for (int u = 0; u < kItems; ++u) {
    const char* from = at_step(at_step(a.values, place[u], a.a_block), row[u], a.a_row);
    if constexpr (kTransposed) {
#pragma unroll
      for (int k = 0; k < kBlockK; ++k) {
        left[u][k] = __ldg(reinterpret_cast<const T*>(at_step(from, k, a.a_k)));
      }
    } else {
      load_words(from, left[u]);
    }
  }
#pragma unroll
  for (int u = 0; u < kItems; ++u) load_words(at_step(b, column[u], kBlockK * kItem), right[u]);
#pragma unroll
  for (int u = 0; u < kItems; ++u) {
    sum[u] = 0;
#pragma unroll
    for (int k = 0; k < kBlockK; ++k) {
      sum[u] += static_cast<Acc>(left[u][k]) * static_cast<Acc>(right[u][k]);
    }
  }
}

// A segment of a long row; of a thread each kFlatThreads-th item. Sums go by way of `products`.
template <typename T, int kBlockK, bool kTransposed, typename Acc>
__device__ __forceinline__ void multiply_segment(const FlatRowsArguments& a, const char* b, T* c,
                                                 Acc* products) {
  const int bytes = a.wide_indices ? 8 : 4, tid = static_cast<int>(threadIdx.x);
  const int segment = static_cast<int>(blockIdx.x), stretch = segment / 2;
  const bool begins = segment % 2 != 0;
  const int first = stretch * a.limit;
  const int last = a.nnzb - first > a.limit ? first + a.limit : a.nnzb;
  const int row = row_of_block(a, begins ? last - 1 : first);
  const int row_begin = index_at(a.crow_indices, row, bytes);
  const int row_end = index_at(a.crow_indices, row + 1, bytes);
  if (row_end - row_begin <= a.limit || (row_begin >= first) != begins) return;
  const int begin = begins ? row_begin : first;
  const int items = (min(row_end, last) - begin) * a.block_m;

  // As many items at one time as are whole blocks: a thread's are all of one row of C.
  const int at_once = kFlatThreads / a.block_m * a.block_m;
  Acc sum = 0;
  if (tid < at_once) {
    constexpr int kItems = kFlatItems<T, kBlockK>;
    const auto add = [&]<int kCount>(int from, std::integral_constant<int, kCount>) {
      Acc some[kCount];
      multiply_items<T, kBlockK, kTransposed>(a, b, begin, from, at_once, items - 1, some);
#pragma unroll
      for (int u = 0; u < kCount; ++u) sum += some[u];
    };
    int from = tid;
    for (; from + (kItems - 1) * at_once < items; from += kItems * at_once) {
      add(from, std::integral_constant<int, kItems>{});
    }
#pragma unroll 1
    for (; from < items; from += at_once) add(from, std::integral_constant<int, 1>{});
  }
  products[tid] = sum;
  __syncthreads();
  Acc* const partials =
      static_cast<Acc*>(a.partials) + int64_t{blockIdx.y} * a.segments * a.block_m;
  if (tid < a.block_m) {
    for (int other = tid + a.block_m; other < at_once; other += a.block_m) sum += products[other];
    __stcg(partials + segment * a.block_m + tid, sum);
    __threadfence();
  }
  __syncthreads();

  const int head = row_begin / a.limit, parts = (row_end - 1) / a.limit - head + 1;
  __shared__ bool is_last;
  if (tid == 0) {
    unsigned* const ended = a.counters + (blockIdx.y * a.segments / 2 + head);
    is_last = atomicAdd(ended, 1u) + 1 == static_cast<unsigned>(parts);
    if (is_last) *ended = 0;  // as the next launch expects it
    __threadfence();
  }
  __syncthreads();
  if (!is_last) return;
  sum = 0;
  if (tid < at_once) {
    const int r = tid % a.block_m;
    for (int part = tid / a.block_m; part < parts; part += at_once / a.block_m) {
      const int64_t from = 2 * (int64_t{head} + part) + (part == 0 ? 1 : 0);
      sum += __ldcg(partials + from * a.block_m + r);
    }
  }
  products[tid] = sum;
  __syncthreads();
  if (tid >= a.block_m) return;
  for (int other = tid + a.block_m; other < at_once; other += a.block_m) sum += products[other];
  const int c_row = row * a.block_m + tid;
  c[c_row * a.c_row] = finish_sum<T>(sum, a.bias, c_row, a.activation);
}

template <typename T, int kBlockK, bool kTransposed>
__global__ void __launch_bounds__(kFlatThreads, (kBlockK > 6 ? 5 : 6))
    flat_rows_kernel(const __grid_constant__ FlatRowsArguments a) {
  using Acc = typename Accumulator<T>::Type;
  constexpr int kItems = kFlatItems<T, kBlockK>;
  extern __shared__ __align__(16) char memory[];
  Acc* const products = reinterpret_cast<Acc*>(memory);
  const char* const b = static_cast<const char*>(a.b) + blockIdx.y * a.b_batch;
  T* const c = static_cast<T*>(a.c) + blockIdx.y * a.c_batch_stride;
  if (static_cast<int>(blockIdx.x) < a.segments) {
    multiply_segment<T, kBlockK, kTransposed>(a, b, c, products);
    return;
  }
  const int bytes = a.wide_indices ? 8 : 4, tid = static_cast<int>(threadIdx.x);
  const int first_row = (static_cast<int>(blockIdx.x) - a.segments) * a.rows_each;
  const int rows = min(a.rows_each, a.rows - first_row);
  const int all_end = index_at(a.crow_indices, first_row + rows, bytes);
  const int own = static_cast<int>(__umulhi(2 * tid, a.by_block_m)), r = tid - own * a.block_m;
  const int all_begin = index_at(a.crow_indices, first_row, bytes);
  int own_begin = 0, own_end = 0;
  if (own < rows) {
    own_begin = index_at(a.crow_indices, first_row + own, bytes);
    own_end = index_at(a.crow_indices, first_row + own + 1, bytes);
  }
  const bool is_long = own_end - own_begin > a.limit;

  Acc sum = 0;
  const auto add_chunk = [&](int first, int blocks) {
    const int items = blocks * a.block_m;
#pragma unroll 1
    for (int item = tid; item < items; item += kItems * kFlatThreads) {
      Acc some[kItems];
      multiply_items<T, kBlockK, kTransposed>(a, b, first, item, kFlatThreads, items - 1, some);
#pragma unroll
      for (int u = 0; u < kItems; ++u) {
        if (item + u * kFlatThreads < items) products[item + u * kFlatThreads] = some[u];
      }
    }
    __syncthreads();
    constexpr int kAlone = 40;  // blocks that a thread adds up by itself
    const int low = max(own_begin - first, 0), high = is_long ? 0 : min(own_end - first, blocks);
    const Acc* const from = products + r;
    if (high - low <= kAlone) {
      int i = low;
      for (; i + 3 < high; i += 4) {
        const Acc p = from[i * a.block_m] + from[(i + 1) * a.block_m];
        const Acc q = from[(i + 2) * a.block_m] + from[(i + 3) * a.block_m];
        sum += p + q;
      }
#pragma unroll 1
      for (; i < high; ++i) sum += from[i * a.block_m];
    }
    for (unsigned left = __ballot_sync(~0u, high - low > kAlone); left != 0; left &= left - 1) {
      const int whose = __ffs(left) - 1;
      const int begin = __shfl_sync(~0u, low, whose), end = __shfl_sync(~0u, high, whose);
      const Acc* const its = products + __shfl_sync(~0u, r, whose);
      Acc part = 0;
#pragma unroll 1
      for (int i = begin + tid % 32; i < end; i += 32) part += its[i * a.block_m];
#pragma unroll
      for (int half = 16; half > 0; half /= 2) part += __shfl_xor_sync(~0u, part, half);
      if (tid % 32 == whose) sum += part;
    }
    __syncthreads();
  };
  __shared__ int hole[2];  // the next long row's blocks, which others multiply
  for (int at = all_begin; at < all_end;) {
    int end = all_end, next = all_end;
    if (a.segments > 0) {
      if (tid < 2) hole[tid] = all_end;
      __syncthreads();
      const bool parts = is_long && own_begin >= at && r == 0;
      if (parts) atomicMin(hole, own_begin);
      __syncthreads();
      end = hole[0];
      if (parts && own_begin == end) hole[1] = own_end;
      __syncthreads();
      next = hole[1];
    }
#pragma unroll 1
    for (int first = at; first < end; first += a.chunk) add_chunk(first, min(a.chunk, end - first));
    at = next;
    __syncthreads();
  }
  if (own >= rows || is_long) return;
  const int c_row = (first_row + own) * a.block_m + r;
  c[c_row * a.c_row] = finish_sum<T>(sum, a.bias, c_row, a.activation);
}

}  // namespace sparse_autotune
