// Lists of columns of tiles of several block rows, made from a mask on the device.
//
// A thread block owns one tile of one pattern; it marks the columns that it finds in shared memory,
// then writes them in order. Nothing waits for the host.
#include "kernels/cuda/attention/tile_lists.h"

#include <cuda_runtime.h>

#include "kernels/cuda/device/warp_sum.cuh"
#include "kernels/cuda/host/cuda_status.h"

namespace sparse_autotune {
namespace {

constexpr int kListThreads = 256;

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

template <int kBits>
__global__ void __launch_bounds__(kListThreads)
    tile_lists_kernel(AttentionMask mask, int block_rows, int block_columns, int rows_of_tile,
                      int32_t* counts, int32_t* entries) {
  extern __shared__ unsigned marks[];   // kBits for each block column
  constexpr int kColumns = 32 / kBits;  // of a word
  const int words = (block_columns + kColumns - 1) / kColumns;
  for (int i = threadIdx.x; i < words; i += kListThreads) marks[i] = 0;
  __syncthreads();
  const int32_t* crow = mask.crow_indices + static_cast<int64_t>(blockIdx.y) * (block_rows + 1);
  const int first = blockIdx.x * rows_of_tile, rows = min(rows_of_tile, block_rows - first);
  for (int row = 0; row < rows; ++row) {
    const int end = crow[first + row + 1];
    for (int i = crow[first + row] + threadIdx.x; i < end; i += kListThreads) {
      const int column = mask.col_indices[i];
      atomicOr(&marks[column / kColumns], 1u << (column % kColumns * kBits + row));
    }
  }
  __syncthreads();
  int32_t* to = entries + crow[first];
  int written = 0;
  for (int from = 0; from < block_columns; from += kListThreads) {
    const int column = from + threadIdx.x;
    unsigned bits = 0;
    if (column < block_columns) {
      bits = marks[column / kColumns] >> column % kColumns * kBits & ((1u << kBits) - 1);
    }
    int total;
    const int place = sum_before(bits != 0, &total);
    if (bits != 0) to[written + place] = static_cast<int>(unsigned(column) << kBits | bits);
    written += total;
  }
  if (threadIdx.x == 0) counts[blockIdx.y * gridDim.x + blockIdx.x] = written;
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
                       void* stream, TileLists* lists, int bits) {
  *lists = {};
  if (!has_lists(m, tile_rows)) return Status::ok();
  auto* counts = static_cast<int32_t*>(memory);
  auto* entries = counts + count_bytes(m, s, tile_rows) / 4;
  const int columns = block_columns_of(m, s);
  const int64_t shared = ceil_div(columns, 32 / bits) * 4;
  const auto kernel =
      bits == kWideEntryBits ? tile_lists_kernel<kWideEntryBits> : tile_lists_kernel<kEntryBits>;
  const cudaError_t allowed = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared));
  if (allowed != cudaSuccess) return to_status(allowed, "lists of a mask");
  const auto tiles = static_cast<unsigned>(ceil_div(s.rows, tile_rows));
  kernel<<<dim3(tiles, static_cast<unsigned>(m.patterns)), kListThreads,
           static_cast<size_t>(shared), static_cast<cudaStream_t>(stream)>>>(
      m, block_rows_of(m, s), columns, tile_rows / m.block_m, counts, entries);
  *lists = {counts, entries};
  return to_status(cudaGetLastError(), "tile_lists");
}

}  // namespace sparse_autotune
