// A table of tasks on the device: one thread block measures rows and decides how they are cut, then
// warps write the tasks of a strip each.
#include <cuda_runtime.h>

#include "kernels/cuda/device/warp_sum.cuh"
#include "kernels/cuda/host/cuda_status.h"
#include "plan/cut_tasks.h"
#include "plan/group_window.cuh"
#include "plan/task_table.h"

namespace sparse_autotune {
namespace {

constexpr int kThreads = 1024, kWarps = kThreads / 32;
constexpr int kWriters = 256;                  // threads of a thread block that writes tasks
constexpr int kLimits = 4 * kTaskColumns + 1;  // in quarters
// Rounds beyond which all thread blocks are taken to have equally much.
constexpr int kManyRounds = 64;

// What is noted of block rows, behind the tasks.
struct RowNotes {
  int2* place;   // where its tasks go: the longer ones, the others
  int2* match;   // of two odd rows in turn, the blocks of a column that they share; or {-1, -1}
  int* missing;  // the block that became a part of a task of two rows, or -1
  int* odd;      // the rows of an odd number of blocks
};

template <typename Index>
struct Rows {
  PatternArrays<Index> p;

  // Of a pattern that breaks rules these may be wrong, but lie within the indices.
  __device__ int begin(int row) const {
    return static_cast<int>(max(int64_t{0}, min(static_cast<int64_t>(p.crow[row]), p.nnzb)));
  }
  __device__ int count() const { return static_cast<int>(p.block_rows); }
  __device__ int blocks(int row) const { return max(begin(row + 1) - begin(row), 0); }
  // But for those of a block that is in a task of two rows.
  __device__ int pieces(int row, const TaskShape& shape, bool joined, const RowNotes& notes) const {
    return (blocks(row) - (joined && notes.missing[row] >= 0 ? 1 : 0)) * shape.across;
  }
  __device__ StoredBlock block(int wanted) const {
    const auto number = static_cast<int>(max(int64_t{0}, min(int64_t{wanted}, p.nnzb - 1)));
    const auto column = static_cast<int64_t>(p.col[number]);
    return {number, static_cast<int>(max(int64_t{0}, min(column, p.block_cols - 1)))};
  }
};

__device__ int lane() { return static_cast<int>(threadIdx.x) % 32; }
__device__ int warp() { return static_cast<int>(threadIdx.x) / 32; }

// By a warp: the cost of the thread block that has most to do.
__device__ int64_t longest_share(const TaskShape& shape, const TaskSizes& sizes) {
  if (sizes.all() / shape.places >= kManyRounds) {
    int64_t all = 0;
    for (int size = 1; size <= kTaskColumns; ++size) {
      all += int64_t{sizes.count[size]} * task_cost(shape, size);
    }
    return all / shape.places;
  }
  int64_t most = 0;
  for (int me = lane(); me < shape.places; me += 32) {
    most = max(most, cost_of_place(shape, sizes, me));
  }
  for (int apart = 16; apart > 0; apart /= 2) {
    most = max(most, static_cast<int64_t>(__shfl_xor_sync(~0u, most, apart)));
  }
  return most;
}

// What a cost comes to where the largest task has so many units: the ring's three stages cost about
// a twentieth more than four.
__device__ int64_t in_ring(int64_t cost, int units) { return cost * (units > 7 ? 21 : 20); }
constexpr int kJoinedUnits = 8;  // of blocks of 128 x 128 that share no column

// By a warp: a block column that two rows share, as the blocks' numbers; {-1, -1}: they share none.
template <typename Index>
__device__ int2 find_shared_column(const Rows<Index>& rows, const int (&row)[2]) {
  const int begin = rows.begin(row[0]), end = begin + rows.blocks(row[0]);
  const int other = rows.begin(row[1]), other_end = other + rows.blocks(row[1]);
  for (int first = begin; first < end; first += 32) {
    const int mine = first + lane(), column = mine < end ? rows.block(mine).column : -1;
    int low = other, high = other_end;  // the first whose column is not less
    while (low < high) {
      const int middle = low + (high - low) / 2;
      if (rows.block(middle).column < column) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    const bool same = mine < end && low < other_end && rows.block(low).column == column;
    const unsigned found = __ballot_sync(~0u, same);
    if (found == 0) continue;
    const int at = __ffs(static_cast<int>(found)) - 1;
    return {first + at, __shfl_sync(~0u, low, at)};
  }
  return {-1, -1};
}

// By a thread block: what the threads before this one have; `all` becomes what all have.
__device__ int sum_before(int mine, int* all) {
  __shared__ int sums[kWarps];
  const int sum = sum_up_to(mine);
  if (lane() == 31) sums[warp()] = sum;
  __syncthreads();
  int before = sum - mine;
  *all = 0;
  for (int i = 0; i < kWarps; ++i) {
    if (i < warp()) before += sums[i];
    *all += sums[i];
  }
  __syncthreads();
  return before;
}

// How the pieces of a row are cut: `longer` tasks of one piece more than `size`, `others` of these.
struct RowCut {
  int size, longer, others;

  __device__ RowCut(int pieces, int limit) : size(0), longer(0), others(0) {
    if (pieces == 0) return;
    const int parts = tasks_of_row(pieces, limit);
    size = pieces / parts;
    longer = pieces % parts;
    others = parts - longer;
  }
  __device__ int of_size(int wanted) const {
    return wanted == size ? others : wanted == size + 1 ? longer : 0;
  }
};

// By a thread block: lists the rows of an odd number of blocks, in their order.
template <typename Index>
__device__ int list_odd_rows(const Rows<Index>& rows, const RowNotes& notes) {
  int found = 0;
  for (int first = 0; first < rows.count(); first += kThreads) {
    const int row = first + static_cast<int>(threadIdx.x);
    const bool odd = row < rows.count() && rows.blocks(row) % 2 != 0;
    if (row < rows.count()) notes.missing[row] = -1;
    int all;
    const int before = sum_before(odd ? 1 : 0, &all);
    if (odd) notes.odd[found + before] = row;
    found += all;
  }
  __syncthreads();
  return found;
}

// One thread block: makes tasks of two rows of the odd blocks of `wanted` pairs of rows, of those
// that share a column first, and takes what becomes of these rows from and to `sizes`. Returns the
// units of the largest.
template <typename Index>
__device__ int join_rows(const Rows<Index>& rows, const TaskShape& shape, int wanted,
                         const RowNotes& notes, TaskSizes& sizes, SampledTask* tasks) {
  __shared__ int units;
  const int pairs = list_odd_rows(rows, notes) / 2, most = shape.most();
  for (int i = warp(); i < pairs; i += kWarps) {
    const int row[2] = {notes.odd[2 * i], notes.odd[2 * i + 1]};
    const int2 match = find_shared_column(rows, row);
    if (lane() == 0) notes.match[i] = match;
  }
  if (threadIdx.x == 0) units = 0;
  __syncthreads();
  int joined = 0;
  for (int pass = 0; pass < 2; ++pass) {
    for (int first = 0; first < pairs; first += kThreads) {
      const int i = first + static_cast<int>(threadIdx.x);
      int number[2] = {-1, -1};
      bool fits = false;
      if (i < pairs) {
        const int2 match = notes.match[i];
        number[0] = match.x;
        number[1] = match.y;
        fits = (match.x >= 0) == (pass == 0);
      }
      int all;
      const int place = joined + sum_before(fits ? 1 : 0, &all);
      joined += all;
      if (!fits || place >= wanted) continue;
      const int row[2] = {notes.odd[2 * i], notes.odd[2 * i + 1]};
      StoredBlock block[2];
      for (int side = 0; side < 2; ++side) {
        const int blocks = rows.blocks(row[side]);
        if (number[side] < 0) number[side] = rows.begin(row[side]) + blocks - 1;
        block[side] = rows.block(number[side]);
        notes.missing[row[side]] = number[side];
        const RowCut cut(blocks * shape.across, 4 * most);
        atomicSub(&sizes.count[cut.size], cut.others);
        if (cut.longer > 0) atomicSub(&sizes.count[cut.size + 1], cut.longer);
        atomicAdd(&sizes.count[most], (blocks - 1) * shape.across / most);
      }
      describe_task(
          shape, 2 * shape.across,
          [&](int i) {
            const int side = i / shape.across;
            return TaskPiece{row[side], block[side], i % shape.across};
          },
          tasks + place);
      atomicMax(&units, tasks[place].units);
    }
  }
  __syncthreads();
  return units;
}

// By a thread block: where each row's tasks go, the largest of all rows first. `in_rows`: the rows'
// in turn, so that neighbours on the chip, which share a path to L2, share C's lines.
template <typename Index>
__device__ void place_rows(const Rows<Index>& rows, const TaskShape& shape, const TaskSizes& sizes,
                           int limit, int joined, bool in_rows, const RowNotes& notes) {
  int next = joined;
  for (int size = in_rows ? 1 : kTaskColumns; size > 0; --size) {
    if (!in_rows && sizes.count[size] == 0) continue;
    for (int first = 0; first < rows.count(); first += kThreads) {
      const int row = first + static_cast<int>(threadIdx.x);
      RowCut cut(0, limit);
      if (row < rows.count()) cut = RowCut(rows.pieces(row, shape, joined > 0, notes), limit);
      const int mine = (in_rows ? cut.longer + cut.others : cut.of_size(size)) * shape.strips;
      int all;
      const int place = next + sum_before(mine, &all);
      next += all;
      if (mine == 0) continue;
      if (in_rows) {
        notes.place[row] = {place, place + cut.longer * shape.strips};
      } else {
        (size == cut.size ? notes.place[row].y : notes.place[row].x) = place;
      }
    }
  }
}

// By a thread block: sizes of tasks for each limit.
template <typename Index>
__device__ int count_sizes(const Rows<Index>& rows, const TaskShape& shape,
                           const TaskLimits& limits, TaskSizes* sizes) {
  __shared__ int odd;
  const auto me = static_cast<int>(threadIdx.x);
  if (me < kLimits) {
    for (int32_t& count : sizes[me].count) count = 0;
  }
  if (me == 0) odd = 0;
  __syncthreads();
  for (int row = me; row < rows.count(); row += kThreads) {
    const int blocks = rows.blocks(row);
    if (blocks == 0) continue;
    for (int limit = limits.first; limit <= limits.last; ++limit) {
      const RowCut cut(blocks * shape.across, limit);
      atomicAdd(&sizes[limit].count[cut.size], cut.others * shape.strips);
      if (cut.longer > 0) {
        atomicAdd(&sizes[limit].count[cut.size + 1], cut.longer * shape.strips);
      }
    }
    if (blocks % 2 != 0) atomicAdd(&odd, 1);
  }
  __syncthreads();
  return odd;
}

template <typename Index>
__global__ void __launch_bounds__(kThreads, 1)
    decide_kernel(const PatternArrays<Index> p, const TaskShape shape, TaskTable* table,
                  int capacity, const RowNotes notes) {
  __shared__ TaskSizes sizes[kLimits];
  __shared__ int64_t cost[kLimits];
  const Rows<Index> rows{p};
  const TaskLimits limits = task_limits(shape, p.nnzb);
  const int odd = count_sizes(rows, shape, limits, sizes);
  for (int limit = limits.first + warp(); limit <= limits.last; limit += kWarps) {
    const int64_t found = longest_share(shape, sizes[limit]);
    const int units = sizes[limit].largest() + shape.row_units;
    if (lane() == 0) cost[limit] = in_ring(found, units);
  }
  __syncthreads();
  int best = limits.last;  // of as good ones the one with the fewest tasks
  for (int limit = limits.last - 1; limit >= limits.first; --limit) {
    if (cost[limit] < cost[best]) best = limit;
  }
  // A few tasks more than whole rounds take would make one more round. Of a pattern that breaks
  // rules there may be more tasks than the table holds.
  const int most = limits.last, all = sizes[most].all(), rounds = all / shape.places;
  const int over = all - rounds * shape.places;
  const bool joins =
      shape.joins_rows() && all <= capacity && rounds > 0 && over > 0 && 2 * over <= odd &&
      in_ring(int64_t{rounds} * task_cost(shape, shape.most()), kJoinedUnits) < cost[best];
  __syncthreads();
  int joined_units = 0;
  if (joins) {
    best = most;
    joined_units = join_rows(rows, shape, over, notes, sizes[most], table->tasks());
  }
  const int joined = joins ? over : 0, tasks = sizes[best].all() + joined;
  place_rows(rows, shape, sizes[best], best, joined, tasks <= shape.places, notes);
  const int count = min(tasks, capacity);
  // Thread blocks look at the first task that they would have.
  const auto me = static_cast<int>(threadIdx.x);
  for (int i = count + me; i < min(capacity, shape.places); i += kThreads) {
    table->tasks()[i] = SampledTask{};
  }
  if (me > 0) return;
  table->count = count;
  table->limit = best;
  table->joined = joined;
  table->units = shape.row_units + sizes[best].largest();
  if (joined > 0) table->units = max(table->units, joined_units);
}

// A warp writes the tasks of a strip of a block row.
template <typename Index>
__global__ void __launch_bounds__(kWriters, 4)
    write_kernel(const PatternArrays<Index> p, const TaskShape shape, TaskTable* table,
                 int capacity, const RowNotes notes) {
  const Rows<Index> rows{p};
  const int64_t strip_row = int64_t{blockIdx.x} * (kWriters / 32) + warp();
  if (strip_row >= p.block_rows * shape.strips) return;
  const auto row = static_cast<int>(strip_row / shape.strips);
  const auto strip = static_cast<int>(strip_row % shape.strips);
  const bool joined = table->joined > 0;
  const int pieces = rows.pieces(row, shape, joined, notes);
  if (pieces == 0) return;
  const RowCut cut(pieces, table->limit);
  const int missing = joined ? notes.missing[row] : -1, begin = rows.begin(row);
  const auto block_at = [&](int i) {
    const int number = begin + i;
    return rows.block(number + (missing >= 0 && number >= missing ? 1 : 0));
  };
  const int parts = cut.longer + cut.others;
  const int2& place = notes.place[row];  // of a row without longer tasks x is not written
  for (int part = lane(); part < parts; part += 32) {
    const int first = part_begin(pieces, parts, part), end = part_begin(pieces, parts, part + 1);
    const int number = part < cut.longer ? place.x + strip * cut.longer + part
                                         : place.y + strip * cut.others + part - cut.longer;
    // Of a pattern that breaks rules there may be too many.
    if (number >= capacity) return;
    describe_task(
        shape, end - first,
        [&](int i) {
          const int piece = first + i;
          return TaskPiece{static_cast<int>(strip_row), block_at(piece / shape.across),
                           piece % shape.across};
        },
        table->tasks() + number);
  }
}

template <typename Index>
void build(const PatternKey& key, const TaskShape& shape, cudaStream_t stream, TaskTable* table) {
  const PatternArrays<Index> p = arrays_of<Index>(key);
  const auto capacity = static_cast<int>(most_tasks(shape, key.nnzb, key.block_rows));
  auto* const place = reinterpret_cast<int2*>(table->tasks() + capacity);
  auto* const match = place + key.block_rows;
  auto* const missing = reinterpret_cast<int*>(match + ceil_div(key.block_rows, 2));
  const RowNotes notes{place, match, missing, missing + key.block_rows};
  decide_kernel<<<1, kThreads, 0, stream>>>(p, shape, table, capacity, notes);
  const auto blocks = ceil_div(key.block_rows * shape.strips, kWriters / 32);
  write_kernel<<<static_cast<unsigned>(blocks), kWriters, 0, stream>>>(p, shape, table, capacity,
                                                                       notes);
}

}  // namespace

Status build_task_table_cuda(const PatternKey& key, const TaskShape& shape, void* stream_handle,
                             TaskTable* table) {
  const auto stream = static_cast<cudaStream_t>(stream_handle);
  if (key.index_type == IndexType::kInt64) {
    build<int64_t>(key, shape, stream, table);
  } else {
    build<int32_t>(key, shape, stream, table);
  }
  return to_status(cudaGetLastError(), "building a table of tasks");
}

}  // namespace sparse_autotune
