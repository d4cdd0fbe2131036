// Lists of a mask's blocks on the device: a warp counts the blocks of a row, then thread blocks add
// up the counts of all rows before theirs, and their warps write a row each. A mask has at most
// some thousand block rows, so that adding them up anew in each thread block takes less time than
// another launch would.
#include <cuda_runtime.h>

#include "kernels/cuda/host/cuda_status.h"
#include "plan/mask_lists.h"

namespace sparse_autotune {
namespace {

constexpr int kWarp = 32, kWarps = 8, kThreads = kWarps * kWarp;
constexpr unsigned kAll = 0xffffffff;

__device__ int warp_of_block() { return static_cast<int>(threadIdx.x) / kWarp; }
__device__ int lane() { return static_cast<int>(threadIdx.x) % kWarp; }

// The sum of the warp's values, in each lane.
__device__ int warp_total(int value) {
  for (int step = kWarp / 2; step > 0; step /= 2) value += __shfl_xor_sync(kAll, value, step);
  return value;
}

// Of 32 neighbouring columns, those that the row stores.
__device__ unsigned stored(const uint8_t* row, int64_t columns, int64_t first) {
  const int64_t c = first + lane();
  return __ballot_sync(kAll, c < columns && row[c] != 0);
}

__global__ void __launch_bounds__(kThreads)
    count_kernel(const uint8_t* grid, int64_t lines, int64_t columns, int32_t* counts) {
  const int64_t line = int64_t{blockIdx.x} * kWarps + warp_of_block();
  if (line >= lines) return;
  const uint8_t* const row = grid + line * columns;
  int count = 0;
#pragma unroll 4
  for (int64_t first = 0; first < columns; first += kWarp) {
    count += __popc(stored(row, columns, first));
  }
  if (lane() == 0) counts[line] = count;
}

// The sums of `count` numbers and of the first `some` of them, in each thread of the thread block.
struct Sums {
  int of_some, of_all;
};
__device__ Sums sums_of(const int32_t* numbers, int64_t some, int64_t count) {
  __shared__ Sums of_warp[kWarps];
  Sums own{0, 0};
  for (int64_t i = threadIdx.x; i < count; i += kThreads) {
    const int number = numbers[i];
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

// blockIdx.x counts groups of kWarps rows of the pattern blockIdx.y.
__global__ void __launch_bounds__(kThreads)
    list_kernel(MaskGrid shape, const uint8_t* grid, const int32_t* counts, MaskLists out) {
  const int64_t pattern = blockIdx.y;
  const int64_t first_row = int64_t{blockIdx.x} * kWarps, r = first_row + warp_of_block();
  const int32_t* const of_pattern = counts + pattern * shape.rows;
  const Sums sums = sums_of(of_pattern, first_row, shape.rows);
  if (r >= shape.rows) return;
  int own = sums.of_some;  // stored blocks before the row
  for (int64_t i = first_row; i < r; ++i) own += of_pattern[i];
  const auto begin = static_cast<int32_t>(pattern * shape.room());
  int32_t at = begin + own;
  // Each block that is not stored has a place behind all that are.
  int32_t zero_at = begin + sums.of_all + static_cast<int32_t>(r * shape.columns) - own;
  if (lane() == 0) {
    int32_t* const begins = out.begins + pattern * (shape.rows + 1) + r;
    begins[0] = at;
    if (r + 1 == shape.rows) begins[1] = at + of_pattern[r];
  }
  const uint8_t* const row = grid + (pattern * shape.rows + r) * shape.columns;
  const unsigned before = (1u << lane()) - 1;
#pragma unroll 4
  for (int64_t first = 0; first < shape.columns; first += kWarp) {
    const unsigned found = stored(row, shape.columns, first);
    const auto column = static_cast<int32_t>(first) + lane();
    if ((found >> lane() & 1) != 0) {
      out.entries[at + __popc(found & before)] = column;
    } else if (column < shape.columns) {
      out.entries[zero_at + __popc(~found & before)] = 0;
    }
    at += __popc(found);
    zero_at += min(kWarp, static_cast<int>(shape.columns - first)) - __popc(found);
  }
}

// Each warp takes a row of the lists, and marks it in the grid whose rows are columns.
__global__ void __launch_bounds__(kThreads)
    mark_kernel(MaskGrid shape, MaskLists lists, int64_t capacity, uint8_t* turned) {
  const int64_t line = int64_t{blockIdx.x} * kWarps + warp_of_block();
  if (line >= shape.lines()) return;
  const int64_t pattern = line / shape.rows, r = line % shape.rows;
  const int32_t* const begins = lists.begins + line + pattern;
  const int64_t begin = max(begins[0], 0), end = min(int64_t{begins[1]}, capacity);
  for (int64_t i = begin + lane(); i < end; i += kWarp) {
    const int64_t c = lists.entries[i];
    if (c >= 0 && c < shape.columns) turned[pattern * shape.room() + c * shape.rows + r] = 1;
  }
}

unsigned groups(int64_t lines) { return static_cast<unsigned>(ceil_div(lines, kWarps)); }

// No pattern has rows where there are no lines, but each has a begin.
cudaError_t clear_begins(const MaskGrid& shape, const MaskLists& out, cudaStream_t stream) {
  const auto bytes = static_cast<size_t>(shape.patterns * (shape.rows + 1)) * sizeof(int32_t);
  return bytes == 0 ? cudaSuccess : cudaMemsetAsync(out.begins, 0, bytes, stream);
}

cudaError_t list(const MaskGrid& shape, const uint8_t* grid, const MaskLists& out,
                 const MaskScratch& scratch, cudaStream_t stream) {
  if (shape.blocks() == 0) return clear_begins(shape, out, stream);
  count_kernel<<<groups(shape.lines()), kThreads, 0, stream>>>(grid, shape.lines(), shape.columns,
                                                               scratch.counts);
  const dim3 blocks(groups(shape.rows), static_cast<unsigned>(shape.patterns));
  list_kernel<<<blocks, kThreads, 0, stream>>>(shape, grid, scratch.counts, out);
  return cudaGetLastError();
}

}  // namespace

Status list_blocks_cuda(const MaskGrid& shape, const uint8_t* grid, const MaskLists& out,
                        const MaskScratch& scratch, void* stream) {
  return to_status(list(shape, grid, out, scratch, static_cast<cudaStream_t>(stream)),
                   "listing the blocks of a mask");
}

Status turn_lists_cuda(const MaskGrid& shape, const MaskLists& lists, int64_t capacity,
                       const MaskLists& out, const MaskScratch& scratch, void* handle) {
  const auto stream = static_cast<cudaStream_t>(handle);
  const MaskGrid turned{shape.patterns, shape.columns, shape.rows};
  cudaError_t error = cudaSuccess;
  if (shape.blocks() > 0) {
    error = cudaMemsetAsync(scratch.grid, 0, static_cast<size_t>(shape.blocks()), stream);
    if (error == cudaSuccess) {
      mark_kernel<<<groups(shape.lines()), kThreads, 0, stream>>>(shape, lists, capacity,
                                                                  scratch.grid);
      error = cudaGetLastError();
    }
  }
  if (error == cudaSuccess) error = list(turned, scratch.grid, out, scratch, stream);
  return to_status(error, "listing the blocks of a mask by column");
}

}  // namespace sparse_autotune
