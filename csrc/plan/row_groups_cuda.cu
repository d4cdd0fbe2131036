// Row groups on the device: match rows where pairs are asked for, count each group's columns, sum
// up, fill them in. A thread block owns a group.
#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/device/warp_sum.cuh"
#include "kernels/cuda/host/cuda_status.h"
#include "plan/group_window.cuh"
#include "plan/row_groups.h"
#include "plan/row_order.h"

namespace sparse_autotune {
namespace {

// The row of the calling warp, of a group of `rows`; -1: none.
__device__ int64_t row_of(int64_t group, int rows, const RowPair* pairs) {
  const auto warp = static_cast<int>(threadIdx.x / 32);
  if (pairs == nullptr) return group * rows + warp;
  return warp == 0 ? pairs[group].first : pairs[group].second;
}

// ends[group + 1] becomes the group's columns.
template <typename Index>
__global__ void count_one_kernel(const PatternArrays<Index> p, int rows, const RowPair* pairs,
                                 int32_t* ends) {
  __shared__ uint32_t bits[kMaxGroupRows][kWindowWords];
  __shared__ int columns;
  GroupWindow<Index> window(bits, rows, row_of(blockIdx.x, rows, pairs), p);
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
__global__ void fill_kernel(const PatternArrays<Index> p, int rows, const RowPair* pairs,
                            const int32_t* ends, GroupColumn* columns) {
  __shared__ uint32_t bits[kMaxGroupRows][kWindowWords];
  // The window's columns before each word; then all.
  __shared__ int columns_before[kWindowWords + 1];
  GroupWindow<Index> window(bits, rows, row_of(blockIdx.x, rows, pairs), p);
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

// Pairs up the rows of a window: the longest that is left, with whichever shares most columns with
// it. A thread block owns a window, a thread a row.
template <typename Index>
__global__ void __launch_bounds__(kPairWindow)
    match_kernel(const PatternArrays<Index> p, RowPair* pairs) {
  // The columns of each row as bits; of wider matrices several columns share one.
  constexpr int kWords = 32, kWarps = kPairWindow / 32;
  __shared__ uint32_t bits[kPairWindow][kWords + 1];
  __shared__ int lengths[kPairWindow], by_length[kPairWindow], best[kWarps];
  __shared__ bool taken[kPairWindow];
  const int me = static_cast<int>(threadIdx.x), lane = me % 32, warp = me / 32;
  const int64_t first = int64_t{blockIdx.x} * kPairWindow;
  const auto count = static_cast<int>(min(int64_t{kPairWindow}, p.block_rows - first));
  for (int i = me; i < kPairWindow * kWords; i += kPairWindow) bits[i / kWords][i % kWords] = 0;
  taken[me] = me >= count;
  __syncthreads();
  for (int row = warp; row < count; row += kWarps) {
    const int64_t begin = max(static_cast<int64_t>(p.crow[first + row]), int64_t{0});
    const int64_t end = min(static_cast<int64_t>(p.crow[first + row + 1]), p.nnzb);
    for (int64_t at = begin + lane; at < end; at += 32) {
      const auto column = static_cast<uint32_t>(p.col[at]);
      atomicOr(&bits[row][column / 32 % kWords], 1u << (column % 32));
    }
    if (lane == 0) lengths[row] = static_cast<int>(end - begin);
  }
  __syncthreads();
  int rank = 0;
  for (int i = 0; me < count && i < count; ++i) {
    rank += lengths[i] > lengths[me] || (lengths[i] == lengths[me] && i < me) ? 1 : 0;
  }
  if (me < count) by_length[rank] = me;
  __syncthreads();

  RowPair* const mine = pairs + first / 2;
  for (int pair = 0, at = 0; pair < (count + 1) / 2; ++pair) {
    while (taken[by_length[at]]) ++at;
    const int leader = by_length[at];
    int key = 0;  // shared columns, then the place by length
    if (!taken[me] && me != leader) {
      int shared = 0;
      for (int i = 0; i < kWords; ++i) shared += __popc(bits[me][i] & bits[leader][i]);
      key = (shared + 1) * kPairWindow - rank;
    }
    key = __reduce_max_sync(~0u, key);
    if (lane == 0) best[warp] = key;
    __syncthreads();
    for (int i = 0; i < kWarps; ++i) key = max(key, best[i]);
    const int partner = key > 0 ? by_length[(kPairWindow - key % kPairWindow) % kPairWindow] : -1;
    if (me == 0) {
      mine[pair] = {static_cast<int32_t>(first + leader),
                    partner < 0 ? -1 : static_cast<int32_t>(first + partner)};
      taken[leader] = true;
      if (partner >= 0) taken[partner] = true;
    }
    __syncthreads();
  }
}

template <typename Index>
void build(const PatternKey& key, int grouping, cudaStream_t stream, const RowGroups& groups,
           GroupColumn* columns, int32_t* ends) {
  const auto count = static_cast<unsigned>(row_group_count(key, grouping));
  const bool matched = grouping == kMatchedPairs;
  const int rows = matched ? 2 : group_rows(grouping), threads = 32 * rows;
  const PatternArrays<Index> p = arrays_of<Index>(key);
  if (matched) {
    const auto windows = static_cast<unsigned>(ceil_div(key.block_rows, kPairWindow));
    match_kernel<<<windows, kPairWindow, 0, stream>>>(p, const_cast<RowPair*>(groups.pairs));
  }
  count_one_kernel<<<count, threads, 0, stream>>>(p, rows, groups.pairs, ends);
  sum_kernel<<<1, 32, 0, stream>>>(ends, count);
  fill_kernel<<<count, threads, 0, stream>>>(p, rows, groups.pairs, ends, columns);
}

}  // namespace

Status build_row_groups_cuda(const PatternKey& key, const PatternFacts& facts, int grouping,
                             void* stream_handle, void* memory) {
  const auto stream = static_cast<cudaStream_t>(stream_handle);
  const RowGroups groups = row_groups_at(key, grouping, memory);
  auto* columns = const_cast<GroupColumn*>(groups.columns);
  const bool matched = grouping == kMatchedPairs;
  auto* ends = reinterpret_cast<int32_t*>(
      columns + (matched ? key.nnzb : facts.group_counts.columns[grouping]));
  if (key.index_type == IndexType::kInt64) {
    build<int64_t>(key, grouping, stream, groups, columns, ends);
  } else {
    build<int32_t>(key, grouping, stream, groups, columns, ends);
  }
  const Status status = to_status(cudaGetLastError(), "building row groups");
  if (!status) return status;
  const int64_t longest = matched ? std::min(2 * facts.longest_row, key.block_cols)
                                  : facts.group_counts.longest[grouping];
  return order_segments_cuda(ends, row_group_count(key, grouping), longest, stream,
                             const_cast<OrderedRow*>(groups.groups));
}

}  // namespace sparse_autotune
