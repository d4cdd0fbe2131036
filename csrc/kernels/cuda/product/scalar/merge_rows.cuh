// Small square blocks times few columns in shares of one length, whatever the lengths of rows: the
// kernel.
//
// A thread block owns a share of the path of stored blocks and row ends (merge_path.cuh). It copies
// chunks of its blocks to shared memory as they lie, the next while it multiplies one. Groups of
// lanes, which lie over columns of B, take runs of a chunk, of one length too, wherever rows end: a
// row that ends in the run where it began goes to C at once; of others each run leaves its sum in
// shared memory, and that in which the row ends adds them up, in order. Bias and activation follow
// when a chunk's rows are in C: in the loop over stored blocks they would cost registers.
#pragma once

#include <climits>
#include <cstdint>

#include "kernels/cuda/device/cp_async.cuh"
#include "kernels/cuda/product/scalar/at_step.cuh"
#include "kernels/cuda/product/scalar/load_words.cuh"
#include "kernels/cuda/product/scalar/merge_path.cuh"
#include "kernels/cuda/product/scalar/stage_bytes.cuh"
#include "variant.h"

namespace sparse_autotune {

constexpr int kMergeEnds = 2 * kMergeThreads;  // rows that end in a chunk, at most

// Stored blocks of which a lane has its part of B on its way.
template <int kBlock>
constexpr int kMergeAtOnce = kBlock == 1   ? 4
                             : kBlock == 2 ? 2
                                           : 1;
// Thread blocks of a multiprocessor, as many as registers allow.
constexpr int merge_resident(int block) { return block == 1 ? 4 : block < 4 ? 3 : 2; }

template <typename T, int kBlock>
__global__ void __launch_bounds__(kMergeThreads, merge_resident(kBlock))
    merge_rows_kernel(const __grid_constant__ MergeRowsArguments a) {
  constexpr int kItem = static_cast<int>(sizeof(T)), kBytes = kBlock * kBlock * kItem;
  constexpr int kColumns = 16 / kItem, kAtOnce = kMergeAtOnce<kBlock>;
  extern __shared__ __align__(16) char memory[];
  int* const ends = reinterpret_cast<int*>(memory + a.ends_at);
  const int bytes = a.wide_indices ? 8 : 4, tid = static_cast<int>(threadIdx.x);

  __shared__ MergeBorder borders[2];
  if (tid < 64) {
    const int border = tid / 32;
    const MergeBorder found = merge_border(a, static_cast<int>(blockIdx.x) + border);
    if (tid % 32 == 0) borders[border] = found;
  }
  __syncthreads();
  // Of the last row no end is in the share.
  const int first_row = borders[0].row, last_row = borders[1].row, last_block = borders[1].block;
  const bool cut_first = borders[0].cut != 0, cut_last = borders[1].cut != 0;

  // Sums of a group's lanes lie together, 16 bytes of columns of each row of a block.
  const int group = static_cast<int>(tid * a.by_column_lanes >> 16);
  const int lane = tid - group * a.column_lanes;
  const int strip = static_cast<int>(blockIdx.y) * a.column_lanes * kColumns;
  const int column = strip + lane * kColumns;
  const bool works = group < a.groups && column < a.n;
  const int loaded = min(column, (a.n - 1) / kColumns * kColumns);
  const char* const right = static_cast<const char*>(a.b) + blockIdx.z * a.b_batch + loaded * kItem;
  char* const c = const_cast<char*>(
      at_step(static_cast<char*>(a.c) + blockIdx.z * a.c_batch, column, a.c_column));  // the lane's
  const int pitch = a.column_lanes * kColumns;
  struct alignas(16) Sums {
    T of[kBlock][kColumns];
  };
  const auto sums_of = [&](int of) {
    return reinterpret_cast<Sums*>(memory + a.sums_at) + of * a.column_lanes + lane;
  };
  const unsigned task = blockIdx.z * gridDim.y + blockIdx.y;
  // Where a lane's sums of a row go: its place in C, or in scratch memory for those of a part.
  struct Place {
    char* at;
    int row, column;  // bytes from one to the next
    bool words;       // of 16 bytes
  };
  const auto part_place = [&](int slot) -> Place {
    const unsigned number = (task * gridDim.x + blockIdx.x) * 2 + slot;
    return {
        const_cast<char*>(at_step(a.partials, number * kBlock * pitch + lane * kColumns, kItem)),
        pitch * kItem, kItem, true};
  };
  const auto place_of = [&](int row) -> Place {
    if (row == first_row && cut_first) return part_place(0);
    return {const_cast<char*>(at_step(c, row, kBlock * a.c_row)), a.c_row, a.c_column,
            a.stores_words};
  };
  const auto store = [&](const Place& to, const Sums& sum) {
#pragma unroll
    for (int r = 0; r < kBlock; ++r) {
      char* const at = to.at + int64_t{r} * to.row;
      if (to.words) {
        *reinterpret_cast<uint4*>(at) = *reinterpret_cast<const uint4*>(sum.of[r]);
        continue;
      }
#pragma unroll
      for (int w = 0; w < kColumns; ++w) {
        if (column + w < a.n) *reinterpret_cast<T*>(at + int64_t{w} * to.column) = sum.of[r][w];
      }
    }
  };

  const auto copy = [&](int first, int buffer) {
    const int blocks = min(a.chunk, last_block - first);
    char* const to = memory + buffer;
    stage_bytes(to + a.columns_at, at_step(a.col_indices, first, bytes), blocks * bytes);
    if (a.positions == nullptr) {
      stage_bytes(to, at_step(a.values, first, kBytes), blocks * kBytes);
    } else {
      stage_turned_blocks<T, kBlock>(to, a.values, a.positions, bytes, first, blocks);
    }
    cp_async_commit();
  };

  int first = borders[0].block, row = first_row;  // of the chunk
  if (first < last_block) copy(first, 0);
  const auto end_of = [&](int of) {
    return of < last_row ? index_at(a.crow_indices, of + 1, bytes) : INT_MAX;
  };
  int ahead = end_of(row + tid);
  if (group == 0) *sums_of(a.groups) = {};
  for (int buffer = a.next_at;; buffer = a.next_at - buffer) {
    const int from_buffer = a.next_at - buffer;
    int end = min(first + a.chunk, last_block), count = 0;
    cp_async_wait<0>();
    for (;;) {
      const bool in = ahead <= end;
      if (in) ends[count + tid] = ahead;
      const int more = __syncthreads_count(in);
      count += more;
      if (more < kMergeThreads || count == kMergeEnds) break;
      ahead = end_of(row + count + tid);
    }
    if (count == kMergeEnds) end = ends[count - 1];
    const bool is_last = end == last_block && row + count == last_row;
    if (end < last_block) copy(end, buffer);
    ahead = end_of(row + count + tid);

    // The chunk's first block and its column, as stage_bytes() laid them.
    const int values_at =
        from_buffer + (a.positions == nullptr ? staged_behind(a.values, first, kBytes) : 0);
    const int columns_at = from_buffer + a.columns_at + staged_behind(a.col_indices, first, bytes);
    // Odd, so that the values of neighbouring groups' runs lie in different banks.
    const int run = ((end - first + a.groups - 1) / a.groups) | 1;
    const int begin = min(first + group * run, end), stop = min(begin + run, end);
    int next = 0;  // row that ends, counted from the chunk's first
    if (group > 0) {
      int high = count;
      while (next < high) {
        const int middle = (next + high) / 2;
        if (ends[middle] <= begin) {
          next = middle + 1;
        } else {
          high = middle;
        }
      }
    }
    // In which runs the row that is open where this one begins has begun, and the row that is open
    // behind the chunk; which ends first here, if it began in another: in few registers.
    const int before = next > 0 ? ends[next - 1] : first;
    const int open_from = ((count > 0 ? ends[count - 1] : first) - first) / run;
    const bool pending = works && group > 0 && before < begin && next < count && ends[next] <= stop;
    const unsigned noted = (before - first) / run | open_from << 10 | next << 20;
    if (works) {
      Sums sum{};
      if (group == 0) sum = *sums_of(a.groups);
      int next_end = next < count ? ends[next] : INT_MAX;
      const auto flush = [&](int at) {
        while (next_end <= at) {
          store(place_of(row + next), sum);
          sum = {};
          ++next;
          next_end = next < count ? ends[next] : INT_MAX;
        }
      };
      if (group == 0) flush(first);
#pragma unroll 1
      for (int p = begin; p < stop; p += kAtOnce) {
        T x[kAtOnce][kBlock][kColumns];
#pragma unroll
        for (int u = 0; u < kAtOnce; ++u) {
          const int place = min(p + u, stop - 1) - first;
          const int block_column =
              *reinterpret_cast<const int*>(memory + columns_at + place * bytes);
          const char* const from = at_step(right, block_column, kBlock * a.b_k);
#pragma unroll
          for (int k = 0; k < kBlock; ++k) load_run(at_step(from, k, a.b_k), x[u][k]);
        }
#pragma unroll
        for (int u = 0; u < kAtOnce; ++u) {
          if (u > 0 && p + u >= stop) break;
          const char* const from = memory + values_at + (p + u - first) * kBytes;
#pragma unroll
          for (int r = 0; r < kBlock; ++r) {
            T left[kBlock];
            take_words(from + r * kBlock * kItem, left);
#pragma unroll
            for (int k = 0; k < kBlock; ++k) {
#pragma unroll
              for (int w = 0; w < kColumns; ++w) sum.of[r][w] += left[k] * x[u][k][w];
            }
          }
          flush(p + u + 1);
        }
      }
      *sums_of(group) = sum;
    }
    __syncthreads();

    // A row that began in another run: what its end added is where it belongs already. Then the row
    // that goes on behind the chunk.
    const bool goes_on = works && group == a.groups - 1 && (!is_last || cut_last);
#pragma unroll 1
    for (int job = pending ? 0 : 1; job < (goes_on ? 2 : 1); ++job) {
      const bool behind = job == 1;
      const int from = noted >> (behind ? 10 : 0) & 1023, to = behind ? a.groups : group;
      const Place place = !behind ? place_of(row + static_cast<int>(noted >> 20))
                          : is_last
                              ? part_place(1)
                              : Place{reinterpret_cast<char*>(sums_of(a.groups)), 16, kItem, true};
      Sums sum{};
#pragma unroll 4
      for (int g = from; g < to; ++g) {
        const Sums its = *sums_of(g);
#pragma unroll
        for (int r = 0; r < kBlock; ++r) {
#pragma unroll
          for (int w = 0; w < kColumns; ++w) sum.of[r][w] += its.of[r][w];
        }
      }
      if (!behind) {
#pragma unroll
        for (int r = 0; r < kBlock; ++r) {
#pragma unroll
          for (int w = 0; w < kColumns; ++w) {
            if (column + w < a.n) {
              sum.of[r][w] += *reinterpret_cast<const T*>(place.at + int64_t{r} * place.row +
                                                          int64_t{w} * place.column);
            }
          }
        }
      }
      store(place, sum);
    }
    if (a.bias != nullptr || a.activation != Activation::kNone) {
      __syncthreads();
      // Only this thread block has written them: whole rows.
      const int skipped = row == first_row && cut_first && count > 0 ? 1 : 0;
      const int rows = (count - skipped) * kBlock, above = (row + skipped) * kBlock;
      const int columns = min(pitch, a.n - strip);
#pragma unroll 1
      for (int i = tid; i < rows * columns; i += kMergeThreads) {
        const bool down_first = a.c_row < a.c_column;
        const int down = above + (down_first ? i % rows : i / columns);
        const int across = strip + (down_first ? i / rows : i % columns);
        finish_element<T>(a, down, across, nullptr);
      }
    }
    if (is_last) break;
    first = end;
    row += count;
  }

  if (!cut_first && !cut_last) return;
  // Of the row cut at the share's begin, and of that cut at its end: whether this share is the last
  // of them to end, the first and the last of them.
  __shared__ int3 done[2];
  const bool is_one = cut_first && cut_last && first_row == last_row;
  __syncthreads();
  if (tid % 32 == 0 && tid < 64) {
    const bool behind = tid > 0;
    int3 found{0, 0, 0};
    if (behind ? cut_last && !is_one : cut_first) {
      const int cut_row = behind ? last_row : first_row;
      found.y = (index_at(a.crow_indices, cut_row, bytes) + cut_row) / a.share;
      found.z = (index_at(a.crow_indices, cut_row + 1, bytes) + cut_row) / a.share;
      unsigned* const ended = a.counters + task * gridDim.x + found.y;
      __threadfence();
      found.x = atomicAdd(ended, 1u) == static_cast<unsigned>(found.z - found.y) ? 1 : 0;
      if (found.x != 0) *ended = 0;  // as the next launch expects it
      __threadfence();
    }
    done[tid / 32] = found;
  }
  __syncthreads();
#pragma unroll 1
  for (int i = 0; i < 2; ++i) {
    const int3 ended = done[i];
    if (ended.x == 0) continue;
    finish_cut_row<T, kBlock>(a, reinterpret_cast<T*>(memory + a.sums_at),
                              i == 0 ? first_row : last_row, ended.y, ended.z, strip);
  }
}

}  // namespace sparse_autotune
