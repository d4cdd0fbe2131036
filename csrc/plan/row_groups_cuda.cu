// Row groups on the device: match rows where these are asked for, count each group's columns, sum
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

// The row of the calling warp, of a group of `rows`; -1: none. `matched`: null for neighbours.
__device__ int64_t row_of(int64_t group, int rows, const int32_t* matched) {
  const int64_t place = group * rows + threadIdx.x / 32;
  return matched == nullptr ? place : matched[place];
}

// ends[group + 1] becomes the group's columns.
template <typename Index>
__global__ void count_one_kernel(const PatternArrays<Index> p, int rows, const int32_t* matched,
                                 int32_t* ends) {
  __shared__ uint32_t bits[kMaxGroupRows][kWindowWords];
  __shared__ int columns;
  GroupWindow<Index> window(bits, rows, row_of(blockIdx.x, rows, matched), p);
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
__global__ void fill_kernel(const PatternArrays<Index> p, int rows, const int32_t* matched,
                            const int32_t* ends, GroupColumn* columns) {
  __shared__ uint32_t bits[kMaxGroupRows][kWindowWords];
  // The window's columns before each word; then all.
  __shared__ int columns_before[kWindowWords + 1];
  GroupWindow<Index> window(bits, rows, row_of(blockIdx.x, rows, matched), p);
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

// Columns of a row or of a group as bits; of wider matrices several columns share one. Of 32 times
// `words` columns no more than these are looked at.
constexpr int kMatchWords = 32, kWordsAtOnce = 4;
struct ColumnBits {
  uint32_t word[kMatchWords];

  template <typename With>
  __device__ void each(int words, const With& with) {
#pragma unroll
    for (int w = 0; w < kMatchWords; ++w) {
      if (w % kWordsAtOnce == 0 && w >= words) break;
      with(word[w], w);
    }
  }
};

// Puts the rows of a window into groups of `rows`: the longest that is left, then again and again
// the one that shares most of its columns, and most columns, with those before. A thread block owns
// a window, of as many warps as its rows fill. Once they are sorted a thread has the row of its
// rank, and each warp knows who is free: a step needs one barrier, and few instructions, as there
// are as many steps as rows.
template <typename Index>
__global__ void __launch_bounds__(kMatchWindow)
    match_kernel(const PatternArrays<Index> p, int rows, int32_t* matched) {
  constexpr int kWarps = kMatchWindow / 32, kScale = 512;
  __shared__ alignas(16) uint32_t bits[kMatchWindow][kMatchWords];
  __shared__ int begins[kMatchWindow + 1], by_length[kMatchWindow];
  __shared__ alignas(16) int best[2][kWarps];
  const int me = static_cast<int>(threadIdx.x), lane = me % 32, warp = me / 32;
  const auto threads = static_cast<int>(blockDim.x);
  const int64_t first = int64_t{blockIdx.x} * kMatchWindow;
  const auto count = static_cast<int>(min(int64_t{kMatchWindow}, p.block_rows - first));
  const int words = static_cast<int>(min((p.block_cols + 31) / 32, int64_t{kMatchWords}));
  const auto begin_of = [&](int64_t row) {
    return min(max(static_cast<int64_t>(p.crow[row]), int64_t{0}), p.nnzb);
  };
  const int64_t base = begin_of(first);
  for (int i = me; i <= count; i += threads) {
    begins[i] = static_cast<int>(begin_of(first + i) - base);
  }
  for (int i = me; i < threads * kMatchWords; i += threads) {
    bits[i / kMatchWords][i % kMatchWords] = 0;
  }
  if (me < 2 * kWarps) best[me / kWarps][me % kWarps] = 0;
  __syncthreads();
#pragma unroll 4
  for (int at = me; at < begins[count]; at += threads) {
    const auto column = static_cast<uint32_t>(p.col[base + at]);
    int row = 0;  // the last that does not begin behind the block
    for (int step = kMatchWindow / 2; step > 0; step /= 2) {
      if (row + step < count && begins[row + step] <= at) row += step;
    }
    atomicOr(&bits[row][column / 32 % kMatchWords], 1u << (column % 32));
  }
  const auto length_of = [&](int row) { return begins[row + 1] - begins[row]; };
  int rank = 0;
  for (int i = 0; me < count && i < count; ++i) {
    const int length = length_of(i), own = length_of(me);
    rank += length > own || (length == own && i < me) ? 1 : 0;
  }
  if (me < count) by_length[rank] = me;
  __syncthreads();

  const int own_row = me < count ? by_length[me] : 0;
  const float scale = static_cast<float>(kScale) / static_cast<float>(max(length_of(own_row), 1));
  ColumnBits own, group;
  own.each(words, [&](uint32_t& word, int w) { word = bits[own_row][w]; });
  __syncthreads();
  own.each(words, [&](uint32_t& word, int w) { bits[me][w] = word; });  // by rank from here on
  __syncthreads();
  bool is_free = me < count;
  // A bit for each rank, those from 32 * l on in lane l.
  const int left = count - 32 * lane;
  uint32_t unmatched = left >= 32 ? ~0u : (left > 0 ? (1u << left) - 1 : 0);
  // The row of that rank, -1: none, becomes the one at a place among the matched.
  const auto take = [&](int rank, int place) {
    if (me == max(rank, 0)) {
      matched[first + place] = rank < 0 ? -1 : static_cast<int32_t>(first + own_row);
    }
    is_free = is_free && me != rank;
    if (rank >= 0 && lane == rank / 32) unmatched &= ~(1u << rank % 32);
  };
  int turn = 0;
  const int groups = (count + rows - 1) / rows;
  for (int place = 0; place < groups * rows; ++place) {
    const int at = __ffs(static_cast<int>(__ballot_sync(~0u, unmatched != 0))) - 1;
    int rank = 32 * at + __ffs(static_cast<int>(__shfl_sync(~0u, unmatched, at))) - 1;
    take(rank, place);
    group.each(words, [&](uint32_t& word_of_group, int w) { word_of_group = bits[rank][w]; });
    for (int next_to = place + rows - 1; place < next_to;) {
      int key = 0;  // what is shared, then the place by length
      if (is_free) {
        int shared = 0;
        own.each(words,
                 [&](uint32_t own_word, int w) { shared += __popc(own_word & group.word[w]); });
        const auto weight = static_cast<int>(static_cast<float>(shared * shared) * scale);
        key = (weight + 1) * kMatchWindow - me;
      }
      key = __reduce_max_sync(~0u, key);
      if (lane == 0) best[turn][warp] = key;
      __syncthreads();
#pragma unroll
      for (int w = 0; w < kWarps; ++w) key = max(key, best[turn][w]);
      turn ^= 1;
      rank = key == 0 ? -1 : (kMatchWindow - key % kMatchWindow) % kMatchWindow;
      take(rank, ++place);
      if (place < next_to && rank >= 0) {
        group.each(words, [&](uint32_t& word_of_group, int w) { word_of_group |= bits[rank][w]; });
      }
    }
  }
}

template <typename Index>
void build(const PatternKey& key, int grouping, cudaStream_t stream, const RowGroups& groups,
           GroupColumn* columns, int32_t* ends) {
  const auto count = static_cast<unsigned>(row_group_count(key, grouping));
  const int rows = group_rows(grouping), threads = 32 * rows;
  const PatternArrays<Index> p = arrays_of<Index>(key);
  if (is_matched(grouping)) {
    const auto windows = static_cast<unsigned>(ceil_div(key.block_rows, kMatchWindow));
    const int64_t filled = 32 * ceil_div(std::min<int64_t>(key.block_rows, kMatchWindow), 32);
    match_kernel<<<windows, static_cast<unsigned>(filled), 0, stream>>>(
        p, rows, const_cast<int32_t*>(groups.rows));
  }
  count_one_kernel<<<count, threads, 0, stream>>>(p, rows, groups.rows, ends);
  sum_kernel<<<1, 32, 0, stream>>>(ends, count);
  fill_kernel<<<count, threads, 0, stream>>>(p, rows, groups.rows, ends, columns);
}

}  // namespace

Status build_row_groups_cuda(const PatternKey& key, const PatternFacts& facts, int grouping,
                             void* stream_handle, void* memory) {
  const auto stream = static_cast<cudaStream_t>(stream_handle);
  const RowGroups groups = row_groups_at(key, grouping, memory);
  auto* columns = const_cast<GroupColumn*>(groups.columns);
  auto* ends = reinterpret_cast<int32_t*>(columns + row_group_columns(key, facts, grouping));
  if (key.index_type == IndexType::kInt64) {
    build<int64_t>(key, grouping, stream, groups, columns, ends);
  } else {
    build<int32_t>(key, grouping, stream, groups, columns, ends);
  }
  const Status status = to_status(cudaGetLastError(), "building row groups");
  if (!status) return status;
  const int64_t longest = is_matched(grouping)
                              ? std::min(group_rows(grouping) * facts.longest_row, key.block_cols)
                              : facts.group_counts.longest[grouping];
  return order_segments_cuda(ends, row_group_count(key, grouping), longest, stream,
                             const_cast<OrderedRow*>(groups.groups));
}

}  // namespace sparse_autotune
