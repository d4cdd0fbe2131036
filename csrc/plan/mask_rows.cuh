// A mask's rows on the device: what thread blocks do that list some rows of a pattern, whatever
// says which blocks a row stores. `Rows` has count(pattern, r) and row(pattern, r), of which
// stores(c).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "plan/mask_lists.h"

namespace sparse_autotune {

constexpr int kWarp = 32, kWarps = 16, kThreads = kWarps * kWarp;
constexpr unsigned kAll = 0xffffffff;

__device__ inline int warp_of_block() { return static_cast<int>(threadIdx.x) / kWarp; }
__device__ inline int lane() { return static_cast<int>(threadIdx.x) % kWarp; }

// The sum of the warp's values, in each lane.
__device__ inline int warp_total(int value) {
  for (int step = kWarp / 2; step > 0; step /= 2) value += __shfl_xor_sync(kAll, value, step);
  return value;
}

// Of 32 neighbouring columns, those that the row stores.
template <typename Row>
__device__ unsigned stored(const Row& row, int64_t columns, int64_t first) {
  const auto c = static_cast<int32_t>(first) + lane();
  return __ballot_sync(kAll, c < columns && row.stores(c));
}

// Of a grid with a byte for each block.
struct GridRow {
  const uint8_t* bytes;
  __device__ bool stores(int32_t c) const { return bytes[c] != 0; }
};

// The blocks of a pattern's rows and of the first `some` of them, in each thread of the thread
// block.
struct Sums {
  int of_some, of_all;
};
template <typename Rows>
__device__ Sums sums_of(const Rows& rows, int64_t pattern, int64_t some, int64_t count) {
  __shared__ Sums of_warp[kWarps];
  Sums own{0, 0};
  for (int64_t i = threadIdx.x; i < count; i += kThreads) {
    const int number = rows.count(pattern, i);
    own.of_all += number;
    if (i < some) own.of_some += number;
  }
  own = {warp_total(own.of_some), warp_total(own.of_all)};
  if (lane() == 0) of_warp[warp_of_block()] = own;
  __syncthreads();
  Sums total{0, 0};
  for (const Sums& w : of_warp) {
    total.of_some += w.of_some;
    total.of_all += w.of_all;
  }
  return total;
}

// Writes row r of a pattern, which has `sum` stored blocks, `before` of them in the rows before r.
template <typename Row>
__device__ void list_row(const MaskGrid& shape, const Row& row, int64_t pattern, int64_t r,
                         int before, int sum, const MaskLists& out) {
  const auto begin = static_cast<int32_t>(pattern * shape.room());
  int32_t at = begin + before;
  // Each block that is not stored has a place behind all that are.
  int32_t zero_at = begin + sum + static_cast<int32_t>(r * shape.columns) - before;
  int32_t* const begins = out.begins + pattern * (shape.rows + 1) + r;
  if (lane() == 0) begins[0] = at;
  const unsigned lower_lanes = (1u << lane()) - 1;
#pragma unroll 4
  for (int64_t first = 0; first < shape.columns; first += kWarp) {
    const unsigned found = stored(row, shape.columns, first);
    const auto column = static_cast<int32_t>(first) + lane();
    if ((found >> lane() & 1) != 0) {
      out.entries[at + __popc(found & lower_lanes)] = column;
    } else if (column < shape.columns) {
      out.entries[zero_at + __popc(~found & lower_lanes)] = 0;
    }
    at += __popc(found);
    zero_at += min(kWarp, static_cast<int>(shape.columns - first)) - __popc(found);
  }
  if (lane() == 0 && r + 1 == shape.rows) begins[1] = at;
}

// By a thread block: `some` rows of a pattern from `first_row` on, kWarps at a time.
template <typename Rows>
__device__ void list_some_rows(const MaskGrid& shape, const Rows& rows, int64_t pattern,
                               int64_t first_row, int64_t some, const MaskLists& out) {
  const Sums sums = sums_of(rows, pattern, first_row, shape.rows);
  const int64_t end_row = min(first_row + some, shape.rows);
  int before = sums.of_some;
  for (int64_t r0 = first_row; r0 < end_row; r0 += kWarps) {
    const bool counts = lane() < kWarps && r0 + lane() < end_row;
    const int count = counts ? rows.count(pattern, r0 + lane()) : 0;
    const int own = before + warp_total(lane() < warp_of_block() ? count : 0);
    const int64_t r = r0 + warp_of_block();
    if (r < end_row) {
      list_row(shape, rows.row(pattern, r), pattern, r, own, sums.of_all, out);
    }
    before += warp_total(count);
  }
}

// No pattern has rows where there are no lines, but each has a begin.
inline cudaError_t clear_begins(const MaskGrid& shape, const MaskLists& out, cudaStream_t stream) {
  const auto bytes = static_cast<size_t>(shape.patterns * (shape.rows + 1)) * sizeof(int32_t);
  return bytes == 0 ? cudaSuccess : cudaMemsetAsync(out.begins, 0, bytes, stream);
}

}  // namespace sparse_autotune
