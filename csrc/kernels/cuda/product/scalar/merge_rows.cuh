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
#include "kernels/cuda/product/scalar/load_words.cuh"
#include "kernels/cuda/product/scalar/merge_path.cuh"
#include "kernels/cuda/product/scalar/small_block.cuh"
#include "operators/product/product.h"

namespace sparse_autotune {

constexpr int kMergeEnds = 2 * kMergeThreads;  // rows that end in a chunk, at most

// Stored blocks of which a lane has its part of B on its way.
template <int kBlock>
constexpr int kMergeAtOnce = kBlock == 1   ? 4
                             : kBlock == 2 ? 2
                                           : 1;
// Thread blocks of a multiprocessor, as many as registers allow.
constexpr int merge_resident(int block) { return block == 1 ? 4 : block < 4 ? 3 : 2; }

// What one thread of a thread block does with its share.
// kTransposed: blocks are A's, which lie where `positions` says.
template <typename T, int kBlock, bool kTransposed>
struct MergeShare {
  static constexpr int kItem = static_cast<int>(sizeof(T)), kBytes = kBlock * kBlock * kItem;
  static constexpr int kColumns = 16 / kItem, kAtOnce = kMergeAtOnce<kBlock>;

  // Of a lane: 16 bytes of columns of each row of a block.
  struct alignas(16) Sums {
    T of[kBlock][kColumns];
  };
  // Where a lane's sums of a row go: its place in C, or in scratch memory for those of a part.
  struct Place {
    char* at;
    int row, column;  // bytes from one to the next
    bool words;       // of 16 bytes
  };
  // Stored blocks [first, end) of the share; its rows from `row` on, of which `count` end there.
  struct Chunk {
    int first, row, end, count, memory;
    bool is_last;
  };
  // A group's part of a chunk.
  struct Run {
    int begin, stop;
    int next;        // row that ends next, counted from the chunk's first
    unsigned noted;  // 10 bits each: see locate_run()
    bool pending;    // a row that began in another run ends here
  };

  const MergeRowsArguments& a;
  char* const memory;
  int* const ends = reinterpret_cast<int*>(memory + a.ends_at);
  const int bytes = a.wide_indices ? 8 : 4, tid = static_cast<int>(threadIdx.x);
  // Of the last row no end is in the share.
  const int first_row, last_row, last_block;
  const bool cut_first, cut_last;
  // Sums of a group's lanes lie together.
  const int group = static_cast<int>(tid * a.by_column_lanes >> 16);
  const int lane = tid - group * a.column_lanes;
  const int first_column = static_cast<int>(blockIdx.y) * a.column_lanes * kColumns;
  const int column = first_column + lane * kColumns;
  const bool works = group < a.groups && column < a.n;
  const char* const right = static_cast<const char*>(a.b) + blockIdx.z * a.b_batch +
                            min(column, (a.n - 1) / kColumns * kColumns) * kItem;
  char* const c = const_cast<char*>(
      at_step(static_cast<char*>(a.c) + blockIdx.z * a.c_batch, column, a.c_column));  // the lane's
  const int pitch = a.column_lanes * kColumns;
  const unsigned task = blockIdx.z * gridDim.y + blockIdx.y;

  __device__ __forceinline__ MergeShare(const MergeRowsArguments& arguments, char* shared,
                                        const MergeBorder& begin, const MergeBorder& end)
      : a(arguments),
        memory(shared),
        first_row(begin.row),
        last_row(end.row),
        last_block(end.block),
        cut_first(begin.cut != 0),
        cut_last(end.cut != 0) {}

  __device__ __forceinline__ void multiply(int first) {
    int row = first_row;
    if (first < last_block) copy(first, 0);
    int ahead = end_of(row + tid);
    if (group == 0) *sums_of(a.groups) = {};
    for (int buffer = a.next_at;; buffer = a.next_at - buffer) {
      Chunk chunk{first, row, min(first + a.chunk, last_block), 0, a.next_at - buffer, false};
      cp_async_wait<0>();
      list_ends(chunk, ahead);
      if (chunk.end < last_block) copy(chunk.end, buffer);
      ahead = end_of(row + chunk.count + tid);
      const Run run = locate_run(chunk);
      if (works) multiply_run(chunk, run);
      __syncthreads();
      join_runs(chunk, run);
      if (a.bias != nullptr || a.activation != Activation::kNone) {
        __syncthreads();
        finish_rows(chunk);
      }
      if (chunk.is_last) break;
      first = chunk.end;
      row += chunk.count;
    }
  }

  __device__ __forceinline__ Sums* sums_of(int of) const {
    return reinterpret_cast<Sums*>(memory + a.sums_at) + of * a.column_lanes + lane;
  }
  __device__ __forceinline__ Place part_place(int slot) const {
    const unsigned number = (task * gridDim.x + blockIdx.x) * 2 + slot;
    return {
        const_cast<char*>(at_step(a.partials, number * kBlock * pitch + lane * kColumns, kItem)),
        pitch * kItem, kItem, true};
  }
  __device__ __forceinline__ Place place_of(int row) const {
    if (row == first_row && cut_first) return part_place(0);
    return {const_cast<char*>(at_step(c, row, kBlock * a.c_row)), a.c_row, a.c_column,
            a.stores_words};
  }
  __device__ __forceinline__ void store(const Place& to, const Sums& sum) const {
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
  }

  __device__ __forceinline__ void copy(int first, int buffer) const {
    const int blocks = min(a.chunk, last_block - first);
    char* const to = memory + buffer;
    stage_bytes(to + a.columns_at, at_step(a.col_indices, first, bytes), blocks * bytes);
    if constexpr (kTransposed) {
      stage_blocks<kBytes>(to, a.values, a.positions, bytes, first, blocks);
    } else {
      stage_bytes(to, at_step(a.values, first, kBytes), blocks * kBytes);
    }
    cp_async_commit();
  }

  __device__ __forceinline__ int end_of(int row) const {
    return row < last_row ? index_at(a.crow_indices, row + 1, bytes) : INT_MAX;
  }
  // Where the chunk's rows end, to shared memory, as far as there is room for them. `ahead`: where
  // the row ends that this thread lists first.
  __device__ __forceinline__ void list_ends(Chunk& chunk, int ahead) const {
    for (;;) {
      const bool in = ahead <= chunk.end;
      if (in) ends[chunk.count + tid] = ahead;
      const int more = __syncthreads_count(in);
      chunk.count += more;
      if (more < kMergeThreads || chunk.count == kMergeEnds) break;
      ahead = end_of(chunk.row + chunk.count + tid);
    }
    if (chunk.count == kMergeEnds) chunk.end = ends[chunk.count - 1];
    chunk.is_last = chunk.end == last_block && chunk.row + chunk.count == last_row;
  }

  __device__ __forceinline__ int length_of_runs(const Chunk& chunk) const {
    // Odd, so that the values of neighbouring groups' runs lie in different banks.
    return ((chunk.end - chunk.first + a.groups - 1) / a.groups) | 1;
  }
  __device__ __forceinline__ Run locate_run(const Chunk& chunk) const {
    const int length = length_of_runs(chunk), first = chunk.first, count = chunk.count;
    Run run;
    run.begin = min(first + group * length, chunk.end);
    run.stop = min(run.begin + length, chunk.end);
    run.next = group > 0 ? ends_until(run.begin, count) : 0;
    // In which runs the row that is open where this one begins has begun, and the row that is open
    // behind the chunk; which ends first here, if it began in another: in few registers.
    const int before = run.next > 0 ? ends[run.next - 1] : first;
    const int open_from = ((count > 0 ? ends[count - 1] : first) - first) / length;
    run.pending =
        works && group > 0 && before < run.begin && run.next < count && ends[run.next] <= run.stop;
    run.noted = (before - first) / length | open_from << 10 | run.next << 20;
    return run;
  }
  // How many of the chunk's `count` rows end at or before a stored block.
  __device__ __forceinline__ int ends_until(int block, int count) const {
    int low = 0, high = count;
    while (low < high) {
      const int middle = (low + high) / 2;
      if (ends[middle] <= block) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }

  __device__ __forceinline__ void multiply_run(const Chunk& chunk, const Run& run) const {
    const int first = chunk.first, count = chunk.count;
    // The chunk's first block and its column, as stage_bytes() laid them.
    const int values_at = chunk.memory + (kTransposed ? 0 : staged_behind(a.values, first, kBytes));
    const int columns_at = chunk.memory + a.columns_at + staged_behind(a.col_indices, first, bytes);
    Sums sum{};
    if (group == 0) sum = *sums_of(a.groups);
    int next = run.next, next_end = next < count ? ends[next] : INT_MAX;
    const auto flush = [&](int at) {
      while (next_end <= at) {
        store(place_of(chunk.row + next), sum);
        sum = {};
        ++next;
        next_end = next < count ? ends[next] : INT_MAX;
      }
    };
    if (group == 0) flush(first);
#pragma unroll 1
    for (int p = run.begin; p < run.stop; p += kAtOnce) {
      T x[kAtOnce][kBlock][kColumns];
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        const int place = min(p + u, run.stop - 1) - first;
        load_rows_of_b(right, *reinterpret_cast<const int*>(memory + columns_at + place * bytes),
                       a.b_k, x[u]);
      }
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        if (u > 0 && p + u >= run.stop) break;
        multiply_small_block<kTransposed>(memory + values_at + (p + u - first) * kBytes, x[u],
                                          sum.of);
        flush(p + u + 1);
      }
    }
    *sums_of(group) = sum;
  }

  // A row that began in another run: what its end added is where it belongs already. Then the row
  // that goes on behind the chunk.
  __device__ __forceinline__ void join_runs(const Chunk& chunk, const Run& run) const {
    const bool goes_on = works && group == a.groups - 1 && (!chunk.is_last || cut_last);
#pragma unroll 1
    for (int job = run.pending ? 0 : 1; job < (goes_on ? 2 : 1); ++job) {
      const bool behind = job == 1;
      const int from = run.noted >> (behind ? 10 : 0) & 1023, to = behind ? a.groups : group;
      const Place place = !behind ? place_of(chunk.row + static_cast<int>(run.noted >> 20))
                          : chunk.is_last
                              ? part_place(1)
                              : Place{reinterpret_cast<char*>(sums_of(a.groups)), 16, kItem, true};
      Sums sum{};
#pragma unroll 4
      for (int g = from; g < to; ++g) add(sum, *sums_of(g));
      if (!behind) add_stored(sum, place);
      store(place, sum);
    }
  }
  static __device__ __forceinline__ void add(Sums& sum, const Sums its) {
#pragma unroll
    for (int r = 0; r < kBlock; ++r) {
#pragma unroll
      for (int w = 0; w < kColumns; ++w) sum.of[r][w] += its.of[r][w];
    }
  }
  __device__ __forceinline__ void add_stored(Sums& sum, const Place& place) const {
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

  // Bias and activation of the rows that end in a chunk, which only this thread block has written:
  // whole rows.
  __device__ __forceinline__ void finish_rows(const Chunk& chunk) const {
    const int skipped = chunk.row == first_row && cut_first && chunk.count > 0 ? 1 : 0;
    const int rows = (chunk.count - skipped) * kBlock, above = (chunk.row + skipped) * kBlock;
    const int columns = min(pitch, a.n - first_column);
#pragma unroll 1
    for (int i = tid; i < rows * columns; i += kMergeThreads) {
      const bool down_first = a.c_row < a.c_column;
      const int down = above + (down_first ? i % rows : i / columns);
      const int across = first_column + (down_first ? i / rows : i % columns);
      finish_element<T>(a, down, across, nullptr);
    }
  }

  // The rows that the share's borders cut, those of which this share is the last to end.
  __device__ __forceinline__ void finish_cut_rows() const {
    if (!cut_first && !cut_last) return;
    // Of the row cut at the share's begin, and of that cut at its end: whether this share is the
    // last of them to end, the first and the last of them.
    __shared__ int3 done[2];
    const bool is_one = cut_first && cut_last && first_row == last_row;
    __syncthreads();
    if (tid % 32 == 0 && tid < 64) {
      const bool behind = tid > 0;
      done[tid / 32] = (behind ? cut_last && !is_one : cut_first)
                           ? end_share(behind ? last_row : first_row)
                           : int3{0, 0, 0};
    }
    __syncthreads();
#pragma unroll 1
    for (int i = 0; i < 2; ++i) {
      const int3 ended = done[i];
      if (ended.x == 0) continue;
      finish_cut_row<T, kBlock>(a, reinterpret_cast<T*>(memory + a.sums_at),
                                i == 0 ? first_row : last_row, ended.y, ended.z, first_column);
    }
  }
  __device__ __forceinline__ int3 end_share(int row) const {
    int3 found{0, 0, 0};
    found.y = (index_at(a.crow_indices, row, bytes) + row) / a.share;
    found.z = (index_at(a.crow_indices, row + 1, bytes) + row) / a.share;
    unsigned* const ended = a.counters + task * gridDim.x + found.y;
    __threadfence();
    found.x = atomicAdd(ended, 1u) == static_cast<unsigned>(found.z - found.y) ? 1 : 0;
    if (found.x != 0) *ended = 0;  // as the next launch expects it
    __threadfence();
    return found;
  }
};

template <typename T, int kBlock, bool kTransposed>
__global__ void __launch_bounds__(kMergeThreads, merge_resident(kBlock))
    merge_rows_kernel(const __grid_constant__ MergeRowsArguments a) {
  extern __shared__ __align__(16) char memory[];
  __shared__ MergeBorder borders[2];
  if (threadIdx.x < 64) {
    const int border = static_cast<int>(threadIdx.x) / 32;
    const MergeBorder found = merge_border(a, static_cast<int>(blockIdx.x) + border);
    if (threadIdx.x % 32 == 0) borders[border] = found;
  }
  __syncthreads();
  MergeShare<T, kBlock, kTransposed> share(a, memory, borders[0], borders[1]);
  share.multiply(borders[0].block);
  share.finish_cut_rows();
}

}  // namespace sparse_autotune
