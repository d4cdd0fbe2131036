// Lists of columns of tiles of several block rows, made from a mask on the device.
//
// A thread block owns one tile of one pattern; it marks the columns that it finds in shared memory,
// then writes them in order, ascending or balanced. Nothing waits for the host.
#include "kernels/cuda/attention/tile_lists.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <type_traits>

#include "kernels/cuda/attention/balanced_order.cuh"
#include "kernels/cuda/device/warp_sum.cuh"
#include "kernels/cuda/host/kernel_code.h"

namespace sparse_autotune {
namespace {

constexpr int kListThreads = 128;

// The sum of `own` over the threads before this one; `total`, over all.
__device__ int sum_before(int own, int* total) {
  __shared__ int of_warp[kListThreads / 32];
  const int warp = threadIdx.x / 32, up_to = sum_up_to(own);
  __syncthreads();
  if (threadIdx.x % 32 == 31) of_warp[warp] = up_to;
  __syncthreads();
  int before = up_to - own;
  *total = 0;
  for (int i = 0; i < kListThreads / 32; ++i) {
    if (i < warp) before += of_warp[i];
    *total += of_warp[i];
  }
  return before;
}

__host__ __device__ constexpr int round_up(int x, int to) { return (x + to - 1) / to * to; }

// Of a column: a bit for each block row of the tile.
template <int kBits>
using Mark = std::conditional_t<kBits == kWideEntryBits, uint16_t, uint8_t>;

struct TileListsArguments {
  AttentionMask mask;
  int block_rows, block_columns, rows_of_tile, unit, least_rows;
  int32_t *counts, *entries;
};

template <int kBits>
__global__ void __launch_bounds__(kListThreads)
    tile_lists_kernel(const __grid_constant__ TileListsArguments args) {
  constexpr bool kIsWide = kBits == kWideEntryBits;
  constexpr int kColumns = 32 / kBits;  // of a word
  extern __shared__ __align__(16) unsigned marks[];
  const int columns = round_up(args.block_columns, 16), words = columns / kColumns;
  const int unit = args.unit;
  for (int i = threadIdx.x; i < words; i += kListThreads) marks[i] = 0;
  __syncthreads();
  const int first = blockIdx.x * args.rows_of_tile;
  const int rows = min(args.rows_of_tile, args.block_rows - first);
  const int32_t* crow =
      args.mask.crow_indices + static_cast<int64_t>(blockIdx.y) * (args.block_rows + 1) + first;
  for (int row = threadIdx.x / 32; row < rows; row += kListThreads / 32) {
    const int end = crow[row + 1];
#pragma unroll 4
    for (int i = crow[row] + threadIdx.x % 32; i < end; i += 32) {
      const int column = __ldg(args.mask.col_indices + i);
      atomicOr(&marks[column / kColumns], 1u << (column % kColumns * kBits + row));
    }
  }
  __syncthreads();
  const auto* mark = reinterpret_cast<const Mark<kBits>*>(marks);
  auto* start = reinterpret_cast<int*>(marks + words);  // the first column of each unit
  int count = 0;
  for (int from = 0; from < columns; from += 4 * kListThreads) {
    const int begin = from + 4 * threadIdx.x, end = min(columns, begin + 4);
    int own = 0, total;
    for (int column = begin; column < end; ++column) own += mark[column] != 0;
    int place = count + sum_before(own, &total);
    for (int column = begin; column < end; ++column) {
      if (mark[column] == 0) continue;
      if (place % unit == 0) start[place / unit] = column;
      ++place;
    }
    count += total;
  }
  __syncthreads();
  const int whole = count / unit;
  BalancedOrder order(start + round_up(args.block_columns / unit + 1, 4), whole);
  const bool balances = kIsWide && crow[rows] - crow[0] >= args.least_rows * count;
  if constexpr (kIsWide) {
    if (balances) order.find(mark, start, unit, crow, rows);
  }
  int32_t* to = args.entries + crow[0];
  for (int i = threadIdx.x; i * unit < count; i += kListThreads) {
    int column = start[balances && i < whole ? order[i] : i];
    const int end = min(count, (i + 1) * unit);
    for (int at = i * unit; at < end; ++column) {
      if (mark[column] != 0) to[at++] = static_cast<int>(unsigned(column) << kBits | mark[column]);
    }
  }
  if (threadIdx.x == 0) args.counts[blockIdx.y * gridDim.x + blockIdx.x] = count;
}

template <int kBits>
constinit KernelCode<TileListsArguments> tile_lists_code{&tile_lists_kernel<kBits>, false,
                                                         cudaSharedmemCarveoutDefault};

int block_rows_of(const AttentionMask& m, const AttentionShape& s) {
  return static_cast<int>(ceil_div(s.rows, m.block_m));
}
int block_columns_of(const AttentionMask& m, const AttentionShape& s) {
  return static_cast<int>(ceil_div(s.columns, m.block_n));
}
int64_t aligned(int64_t bytes) { return ceil_div(bytes, 256) * 256; }

bool has_lists(const AttentionMask& m, int tile_rows) {
  return m.block_m > 0 && m.block_m < tile_rows;
}
// Of the counts, in front of the entries.
int64_t count_bytes(const AttentionMask& m, const AttentionShape& s, int tile_rows) {
  return aligned(m.patterns * ceil_div(s.rows, tile_rows) * 4);
}

}  // namespace

int64_t tile_lists_bytes(const AttentionMask& m, const AttentionShape& s, int tile_rows,
                         int64_t capacity) {
  return has_lists(m, tile_rows) ? count_bytes(m, s, tile_rows) + aligned(capacity * 4) : 0;
}

Status make_tile_lists(const AttentionMask& m, const AttentionShape& s, int tile_rows, void* memory,
                       void* stream, TileLists* lists, int unit, int least_rows) {
  *lists = {};
  if (!has_lists(m, tile_rows)) return Status::ok();
  auto* counts = static_cast<int32_t*>(memory);
  auto* entries = counts + count_bytes(m, s, tile_rows) / 4;
  const bool wide = unit != 0;
  const int columns = block_columns_of(m, s);
  unit = wide ? std::max(unit, static_cast<int>(ceil_div(columns, kMaxUnits))) : 16;
  const int units = round_up(columns / unit + 1, 4);
  const int64_t shared = round_up(columns, 16) * (wide ? 2 : 1) + units * sizeof(int) +
                         (wide ? BalancedOrder::bytes(units) : 0);
  auto& code = wide ? tile_lists_code<kWideEntryBits> : tile_lists_code<kEntryBits>;
  const auto tiles = static_cast<unsigned>(ceil_div(s.rows, tile_rows));
  *lists = {counts, entries};
  return code.launch({.mask = m,
                      .block_rows = block_rows_of(m, s),
                      .block_columns = columns,
                      .rows_of_tile = tile_rows / m.block_m,
                      .unit = unit,
                      .least_rows = least_rows,
                      .counts = counts,
                      .entries = entries},
                     dim3(tiles, static_cast<unsigned>(m.patterns)), kListThreads, shared, stream,
                     "lists of a mask");
}

}  // namespace sparse_autotune
