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
#include "kernels/cuda/host/cuda_status.h"

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

template <int kBits>
__global__ void __launch_bounds__(kListThreads)
    tile_lists_kernel(AttentionMask mask, int block_rows, int block_columns, int rows_of_tile,
                      int unit, int least_rows, int32_t* counts, int32_t* entries) {
  constexpr bool kIsWide = kBits == kWideEntryBits;
  constexpr int kColumns = 32 / kBits;  // of a word
  extern __shared__ __align__(16) unsigned marks[];
  const int columns = round_up(block_columns, 16), words = columns / kColumns;
  for (int i = threadIdx.x; i < words; i += kListThreads) marks[i] = 0;
  __syncthreads();
  const int first = blockIdx.x * rows_of_tile, rows = min(rows_of_tile, block_rows - first);
  const int32_t* crow =
      mask.crow_indices + static_cast<int64_t>(blockIdx.y) * (block_rows + 1) + first;
  for (int row = threadIdx.x / 32; row < rows; row += kListThreads / 32) {
    const int end = crow[row + 1];
#pragma unroll 4
    for (int i = crow[row] + threadIdx.x % 32; i < end; i += 32) {
      const int column = __ldg(mask.col_indices + i);
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
  BalancedOrder order(start + round_up(block_columns / unit + 1, 4), whole);
  const bool balances = kIsWide && crow[rows] - crow[0] >= least_rows * count;
  if constexpr (kIsWide) {
    if (balances) order.find(mark, start, unit, crow, rows);
  }
  int32_t* to = entries + crow[0];
  for (int i = threadIdx.x; i * unit < count; i += kListThreads) {
    int column = start[balances && i < whole ? order[i] : i];
    const int end = min(count, (i + 1) * unit);
    for (int at = i * unit; at < end; ++column) {
      if (mark[column] != 0) to[at++] = static_cast<int>(unsigned(column) << kBits | mark[column]);
    }
  }
  if (threadIdx.x == 0) counts[blockIdx.y * gridDim.x + blockIdx.x] = count;
}

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
  const auto kernel = wide ? tile_lists_kernel<kWideEntryBits> : tile_lists_kernel<kEntryBits>;
  const cudaError_t allowed = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared));
  if (allowed != cudaSuccess) return to_status(allowed, "lists of a mask");
  const auto tiles = static_cast<unsigned>(ceil_div(s.rows, tile_rows));
  kernel<<<dim3(tiles, static_cast<unsigned>(m.patterns)), kListThreads,
           static_cast<size_t>(shared), static_cast<cudaStream_t>(stream)>>>(
      m, block_rows_of(m, s), columns, tile_rows / m.block_m, unit, least_rows, counts, entries);
  *lists = {counts, entries};
  return to_status(cudaGetLastError(), "tile_lists");
}

}  // namespace sparse_autotune
