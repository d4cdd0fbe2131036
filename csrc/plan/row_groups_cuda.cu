// Row groups on the device. A thread block owns a group; which columns its rows have is a matrix of
// bits in shared memory, so that ranks are sums of set bits. Wide matrices take several windows of
// columns one after another.
#include <cuda_runtime.h>

#include "kernels/cuda/cuda_status.h"
#include "plan/row_groups.h"
#include "plan/row_order.h"

namespace sparse_autotune {
namespace {

constexpr int kMaxRows = group_rows(kGroupings - 1);
constexpr int kWords = 256, kWindow = 32 * kWords;  // columns
// Wider matrices are not worth the walk over their windows.
constexpr int64_t kMaxColumns = int64_t{1} << 24;

template <typename Index>
struct Pattern {
  const Index *crow, *col;
  int64_t block_rows, block_cols, nnzb;
};

// A group's window. A thread block has a warp for each of its `rows` rows.
template <typename Index>
struct Window {
  uint32_t (*bits)[kWords];  // of each row
  int rows, words;
  int64_t at = 0, end = 0;  // this warp's row: blocks behind this window

  __device__ Window(uint32_t (*memory)[kWords], int group_rows, int64_t group,
                    const Pattern<Index>& p)
      : bits(memory), rows(group_rows), words(0) {
    const int64_t row = group * rows + warp();
    if (row < p.block_rows) {
      at = max(static_cast<int64_t>(p.crow[row]), int64_t{0});
      end = min(static_cast<int64_t>(p.crow[row + 1]), p.nnzb);
    }
  }

  static __device__ int warp() { return static_cast<int>(threadIdx.x / 32); }
  static __device__ int lane() { return static_cast<int>(threadIdx.x % 32); }

  // The bits of the window that begins at column `first`, the one behind the last that was loaded.
  __device__ void load(const Pattern<Index>& p, int64_t first) {
    const int64_t width = min(int64_t{kWindow}, p.block_cols - first);
    words = static_cast<int>((width + 31) / 32);
    for (int i = lane(); i < words; i += 32) bits[warp()][i] = 0;
    __syncwarp();
    while (at < end) {
      const int64_t column = at + lane() < end ? p.col[at + lane()] - first : width;
      const bool inside = column < width;
      if (inside && column >= 0) {
        atomicOr(&bits[warp()][column / 32], 1u << (column % 32));
      }
      const uint32_t outside = __ballot_sync(~0u, !inside);
      at += outside != 0 ? __ffs(static_cast<int>(outside)) - 1 : 32;
      if (outside != 0) break;
    }
    __syncthreads();
  }

  __device__ uint32_t any(int word) const {
    uint32_t all = 0;
    for (int row = 0; row < rows; ++row) all |= bits[row][word];
    return all;
  }
};

// By thread blocks of kMaxRows warps, each with that many rows: all groupings at once.
template <typename Index>
__global__ void __launch_bounds__(32 * kMaxRows)
    count_kernel(const Pattern<Index> p, GroupCounts* counts) {
  __shared__ uint32_t bits[kMaxRows][kWords];
  // Numbered as a heap: the group of all rows is 1, the halves of group i are 2 i and 2 i + 1.
  __shared__ int columns[kMaxRows];
  Window<Index> window(bits, kMaxRows, blockIdx.x, p);
  if (threadIdx.x < kMaxRows) columns[threadIdx.x] = 0;
  for (int64_t first = 0; first < p.block_cols; first += kWindow) {
    window.load(p, first);
    // A warp to each group but the first's number 0, which does not exist.
    const int group = window.warp(), lane = window.lane();
    if (group > 0) {
      const int level = 31 - __clz(group), rows = kMaxRows >> level;
      const int from = (group - (1 << level)) * rows;
      int sum = 0;
      for (int i = lane; i < window.words; i += 32) {
        uint32_t all = 0;
        for (int row = from; row < from + rows; ++row) all |= bits[row][i];
        sum += __popc(all);
      }
      sum = __reduce_add_sync(~0u, sum);
      if (lane == 0) columns[group] += sum;
    }
    __syncthreads();
  }
  const int group = static_cast<int>(threadIdx.x);
  if (group > 0 && group < kMaxRows && columns[group] > 0) {
    const int grouping = kGroupings - 1 - (31 - __clz(group));
    atomicAdd(&counts->columns[grouping], columns[group]);
    atomicMax(&counts->longest[grouping], columns[group]);
  }
}

// ends[group + 1] becomes the group's columns.
template <typename Index>
__global__ void count_one_kernel(const Pattern<Index> p, int rows, int32_t* ends) {
  __shared__ uint32_t bits[kMaxRows][kWords];
  __shared__ int columns;
  Window<Index> window(bits, rows, blockIdx.x, p);
  if (threadIdx.x == 0) columns = 0;
  for (int64_t first = 0; first < p.block_cols; first += kWindow) {
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

// Of a warp's lanes up to this one.
__device__ int inclusive_sum(int sum) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(~0u, sum, step);
    if (lane >= step) sum += other;
  }
  return sum;
}

// An inclusive sum of ends[1 ... count], in place; ends[0] becomes 0. By one warp.
__global__ void sum_kernel(int32_t* ends, int64_t count) {
  const int lane = static_cast<int>(threadIdx.x);
  if (lane == 0) ends[0] = 0;
  int before = 0;
  for (int64_t i = 1; i <= count; i += 32) {
    const int sum = before + inclusive_sum(i + lane <= count ? ends[i + lane] : 0);
    if (i + lane <= count) ends[i + lane] = sum;
    before = __shfl_sync(~0u, sum, 31);
  }
}

template <typename Index>
__global__ void fill_kernel(const Pattern<Index> p, int rows, const int32_t* ends,
                            GroupColumn* columns) {
  __shared__ uint32_t bits[kMaxRows][kWords];
  // The window's columns before each word; then all.
  __shared__ int columns_before[kWords + 1];
  Window<Index> window(bits, rows, blockIdx.x, p);
  int base = ends[blockIdx.x];
  for (int64_t first = 0; first < p.block_cols; first += kWindow) {
    window.load(p, first);
    if (window.warp() == 0) {
      const int lane = window.lane();
      int before = 0;
      for (int from = 0; from < window.words; from += 32) {
        const int mine = from + lane < window.words ? __popc(window.any(from + lane)) : 0;
        const int sum = inclusive_sum(mine);
        if (from + lane < window.words) columns_before[from + lane] = before + sum - mine;
        before += __shfl_sync(~0u, sum, 31);
      }
      if (lane == 0) columns_before[kWords] = before;
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
    base += columns_before[kWords];
    __syncthreads();
  }
}

template <typename Index>
Pattern<Index> pattern_of(const PatternKey& key) {
  return {static_cast<const Index*>(key.crow_indices), static_cast<const Index*>(key.col_indices),
          key.block_rows, key.block_cols, key.nnzb};
}

template <typename Index>
void build(const PatternKey& key, int grouping, cudaStream_t stream, GroupColumn* columns,
           int32_t* ends) {
  const auto count = static_cast<unsigned>(row_group_count(key, grouping));
  const int rows = group_rows(grouping), threads = 32 * rows;
  const Pattern<Index> p = pattern_of<Index>(key);
  count_one_kernel<<<count, threads, 0, stream>>>(p, rows, ends);
  sum_kernel<<<1, 32, 0, stream>>>(ends, count);
  fill_kernel<<<count, threads, 0, stream>>>(p, rows, ends, columns);
}

}  // namespace

Status count_groups_cuda(const PatternKey& key, void* stream_handle, GroupCounts* counts) {
  if (key.nnzb > INT32_MAX || key.block_cols > kMaxColumns) return Status::ok();
  const auto stream = static_cast<cudaStream_t>(stream_handle);
  const auto blocks = static_cast<unsigned>(row_group_count(key, kGroupings - 1));
  if (key.index_type == IndexType::kInt64) {
    count_kernel<<<blocks, 32 * kMaxRows, 0, stream>>>(pattern_of<int64_t>(key), counts);
  } else {
    count_kernel<<<blocks, 32 * kMaxRows, 0, stream>>>(pattern_of<int32_t>(key), counts);
  }
  return to_status(cudaGetLastError(), "counting the columns of row groups");
}

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
