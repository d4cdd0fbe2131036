// Row groups on the device: count each group's columns, sum up, fill them in. A thread block owns a
// group.
#include <cuda_runtime.h>

#include "kernels/cuda/device/warp_sum.cuh"
#include "kernels/cuda/host/cuda_status.h"
#include "plan/group_window.cuh"
#include "plan/row_groups.h"
#include "plan/row_order.h"

namespace sparse_autotune {
namespace {

// ends[group + 1] becomes the group's columns.
template <typename Index>
__global__ void count_one_kernel(const PatternArrays<Index> p, int rows, int32_t* ends) {
  __shared__ uint32_t bits[kMaxGroupRows][kWindowWords];
  __shared__ int columns;
  GroupWindow<Index> window(bits, rows, blockIdx.x, p);
  if (threadIdx.x == 0) columns = 0;
  for (int64_t first = 0; first < p.block_cols; first += kWindowColumns) {
    window.load(p, first);
    int sum = 0;
    for (int i = static_cast<int>(threadIdx.x); i < window.words; i += 32 * rows) {
      sum += __popc(window.any(i));
    }
    if (sum > 0) atomicAdd(&columns, sum);
    __syncthreads();
  }
  if (threadIdx.x == 0) ends[blockIdx.x + 1] = columns;
}

// An inclusive sum of ends[1 ... count], in place; ends[0] becomes 0. By one warp.
__global__ void sum_kernel(int32_t* ends, int64_t count) {
  const int lane = static_cast<int>(threadIdx.x);
  if (lane == 0) ends[0] = 0;
  int before = 0;
  for (int64_t i = 1; i <= count; i += 32) {
    const int sum = before + sum_up_to(i + lane <= count ? ends[i + lane] : 0);
    if (i + lane <= count) ends[i + lane] = sum;
    before = __shfl_sync(~0u, sum, 31);
  }
}

template <typename Index>
__global__ void fill_kernel(const PatternArrays<Index> p, int rows, const int32_t* ends,
                            GroupColumn* columns) {
  __shared__ uint32_t bits[kMaxGroupRows][kWindowWords];
  // The window's columns before each word; then all.
  __shared__ int columns_before[kWindowWords + 1];
  GroupWindow<Index> window(bits, rows, blockIdx.x, p);
  int base = ends[blockIdx.x];
  for (int64_t first = 0; first < p.block_cols; first += kWindowColumns) {
    window.load(p, first);
    if (window.warp() == 0) {
      const int lane = window.lane();
      int before = 0;
      for (int from = 0; from < window.words; from += 32) {
        const int mine = from + lane < window.words ? __popc(window.any(from + lane)) : 0;
        const int sum = sum_up_to(mine);
        if (from + lane < window.words) columns_before[from + lane] = before + sum - mine;
        before += __shfl_sync(~0u, sum, 31);
      }
      if (lane == 0) columns_before[kWindowWords] = before;
    }
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < 32 * window.words; i += 32 * rows) {
      const int word = i / 32;
      const uint32_t bit = 1u << (i % 32), all = window.any(word);
      if ((all & bit) == 0) continue;
      uint32_t present = 0;
      for (int row = 0; row < rows; ++row) present |= (bits[row][word] & bit) != 0 ? 1u << row : 0u;
      columns[base + columns_before[word] + __popc(all & (bit - 1))] = {
          static_cast<int32_t>(first + i), present};
    }
    base += columns_before[kWindowWords];
    __syncthreads();
  }
}

template <typename Index>
void build(const PatternKey& key, int grouping, cudaStream_t stream, GroupColumn* columns,
           int32_t* ends) {
  const auto count = static_cast<unsigned>(row_group_count(key, grouping));
  const int rows = group_rows(grouping), threads = 32 * rows;
  const PatternArrays<Index> p = arrays_of<Index>(key);
  count_one_kernel<<<count, threads, 0, stream>>>(p, rows, ends);
  sum_kernel<<<1, 32, 0, stream>>>(ends, count);
  fill_kernel<<<count, threads, 0, stream>>>(p, rows, ends, columns);
}

}  // namespace

Status build_row_groups_cuda(const PatternKey& key, const PatternFacts& facts, int grouping,
                             void* stream_handle, void* memory) {
  const auto stream = static_cast<cudaStream_t>(stream_handle);
  const RowGroups groups = row_groups_at(key, grouping, memory);
  auto* columns = const_cast<GroupColumn*>(groups.columns);
  auto* ends = reinterpret_cast<int32_t*>(columns + facts.group_counts.columns[grouping]);
  if (key.index_type == IndexType::kInt64) {
    build<int64_t>(key, grouping, stream, columns, ends);
  } else {
    build<int32_t>(key, grouping, stream, columns, ends);
  }
  const Status status = to_status(cudaGetLastError(), "building row groups");
  if (!status) return status;
  return order_segments_cuda(ends, row_group_count(key, grouping),
                             facts.group_counts.longest[grouping], stream,
                             const_cast<OrderedRow*>(groups.groups));
}

}  // namespace sparse_autotune
