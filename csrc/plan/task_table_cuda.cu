// A table of tasks on the device: one thread block measures rows and decides how they are cut, then
// warps write the tasks of a strip each.
#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/host/cuda_status.h"
#include "plan/cut_tasks.h"
#include "plan/group_window.cuh"
#include "plan/task_table.h"

namespace sparse_autotune {
namespace {

constexpr int kThreads = 1024, kWarps = kThreads / 32;
constexpr int kWriters = 256;  // threads of a thread block that writes tasks
// Rounds beyond which all thread blocks are taken to have equally much.
constexpr int kManyRounds = 64;

// Where they lie behind the tasks: of each block row the block that became a part of a task of two
// rows, or -1; and the rows that have one block left.
struct Leftovers {
  int32_t *block, *rows;
};

template <typename Index>
struct Rows {
  PatternArrays<Index> p;

  // Of a pattern that breaks rules the bounds may be wrong, but lie within the indices.
  __device__ int begin(int64_t row) const {
    return static_cast<int>(max(int64_t{0}, min(static_cast<int64_t>(p.crow[row]), p.nnzb)));
  }
  __device__ int blocks(int64_t row) const { return max(begin(row + 1) - begin(row), 0); }
  __device__ StoredBlock block(int number) const {
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

// By a warp: a block column that two rows share, as the blocks' numbers in each; false: they share
// none, and these are the last blocks.
template <typename Index>
__device__ bool find_shared_column(const Rows<Index>& rows, const int (&row)[2], int (&block)[2]) {
  const int begin = rows.begin(row[0]), end = begin + rows.blocks(row[0]);
  const int other = rows.begin(row[1]), other_end = other + rows.blocks(row[1]);
  block[0] = end - 1;
  block[1] = other_end - 1;
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
    block[0] = first + at;
    block[1] = __shfl_sync(~0u, low, at);
    return true;
  }
  return false;
}

// One thread block: joins the odd blocks of `wanted` pairs of rows to tasks of two rows, of those
// that share a column first, and takes both rows' tasks from `sizes` for those that they have then.
template <typename Index>
__device__ void join_rows(const Rows<Index>& rows, const TaskShape& shape, int wanted,
                          const Leftovers& left, TaskSizes& sizes, SampledTask* tasks) {
  __shared__ int odd, joined, shared_columns;
  const auto count = static_cast<int>(rows.p.block_rows);
  for (int row = static_cast<int>(threadIdx.x); row < count; row += kThreads) left.block[row] = -1;
  if (warp() == 0) {  // in the order of rows, so that those that are near become pairs
    int found = 0;
    for (int first = 0; first < count; first += 32) {
      const int row = first + lane();
      const bool is_odd = row < count && rows.blocks(row) % 2 != 0;
      const unsigned all = __ballot_sync(~0u, is_odd);
      if (is_odd) left.rows[found + __popc(all & ((1u << lane()) - 1))] = row;
      found += __popc(all);
    }
    if (lane() == 0) {
      odd = found;
      joined = shared_columns = 0;
    }
  }
  __syncthreads();
  for (int pass = 0; pass < 2; ++pass) {
    for (int i = warp(); i < odd / 2; i += kWarps) {
      const int row[2] = {left.rows[2 * i], left.rows[2 * i + 1]};
      if (left.block[row[0]] >= 0) continue;
      int number[2];
      const bool shared = find_shared_column(rows, row, number);
      if (shared != (pass == 0)) continue;
      int place = 0;
      if (lane() == 0) place = atomicAdd(&joined, 1);
      place = __shfl_sync(~0u, place, 0);
      if (place >= wanted) break;
      if (lane() > 0) continue;
      describe_pair(shape, row, {rows.block(number[0]), rows.block(number[1])}, tasks + place);
      for (int side = 0; side < 2; ++side) {
        left.block[row[side]] = number[side];
        const int pieces = rows.blocks(row[side]) * shape.across, limit = shape.most();
        const int parts = parts_of(pieces, limit), longer = pieces % parts;
        atomicSub(&sizes.count[pieces / parts], parts - longer);
        if (longer > 0) atomicSub(&sizes.count[pieces / parts + 1], longer);
        atomicAdd(&sizes.count[limit], (pieces - shape.across) / limit);
      }
    }
    __syncthreads();
  }
}

template <typename Index>
__global__ void __launch_bounds__(kThreads)
    decide_kernel(const PatternArrays<Index> p, const TaskShape shape, TaskTable* table,
                  int capacity, const Leftovers left) {
  __shared__ TaskSizes sizes[kTaskColumns + 1];  // by limit
  __shared__ int64_t cost[kTaskColumns + 1];
  __shared__ int odd;
  const Rows<Index> rows{p};
  const TaskLimits limits = task_limits(shape, p.nnzb);
  const auto me = static_cast<int>(threadIdx.x);
  if (me < (kTaskColumns + 1) * (kTaskColumns + 1)) {
    sizes[me / (kTaskColumns + 1)].count[me % (kTaskColumns + 1)] = 0;
  }
  if (me == 0) odd = 0;
  __syncthreads();
  for (int64_t row = me; row < p.block_rows; row += kThreads) {
    const int blocks = rows.blocks(row), pieces = blocks * shape.across;
    if (pieces == 0) continue;
    for (int limit = limits.first; limit <= limits.last; ++limit) {
      const int parts = parts_of(pieces, limit), longer = pieces % parts;
      int32_t* const count = sizes[limit].count + pieces / parts;
      atomicAdd(count, (parts - longer) * shape.strips);
      if (longer > 0) atomicAdd(count + 1, longer * shape.strips);
    }
    if (blocks % 2 != 0) atomicAdd(&odd, 1);
  }
  __syncthreads();
  for (int limit = limits.first + warp(); limit <= limits.last; limit += kWarps) {
    const int64_t found = longest_share(shape, sizes[limit]);
    if (lane() == 0) cost[limit] = found;
  }
  __syncthreads();
  int best = limits.last;  // of as good ones the one with the fewest tasks
  for (int limit = limits.last - 1; limit >= limits.first; --limit) {
    if (cost[limit] < cost[best]) best = limit;
  }
  // A few tasks more than whole rounds take would make one more round.
  const int most = shape.most(), all = sizes[most].all(), rounds = all / shape.places;
  const int over = all - rounds * shape.places;
  const bool joins = shape.joins_rows() && rounds > 0 && over > 0 && 2 * over <= odd &&
                     int64_t{rounds} * task_cost(shape, most) < cost[best];
  if (joins) {
    best = most;
    join_rows(rows, shape, over, left, sizes[most], table->tasks());
  }
  __syncthreads();
  if (me > 0) return;
  table->count = min(sizes[best].all() + (joins ? over : 0), capacity);
  table->limit = best;
  table->joined = joins ? over : 0;
  int next = table->joined;
  for (int size = kTaskColumns; size > 0; --size) {
    table->next[size] = next;
    next += sizes[best].count[size];
  }
}

// A warp writes the tasks of a strip of a block row.
template <typename Index>
__global__ void __launch_bounds__(kWriters)
    write_kernel(const PatternArrays<Index> p, const TaskShape shape, TaskTable* table,
                 int capacity, const Leftovers left) {
  const Rows<Index> rows{p};
  const int64_t strip_row = int64_t{blockIdx.x} * (kWriters / 32) + warp();
  if (strip_row >= p.block_rows * shape.strips) return;
  const int64_t row = strip_row / shape.strips;
  const int begin = rows.begin(row);
  const int missing = table->joined > 0 ? left.block[row] : -1;
  const int pieces = (rows.blocks(row) - (missing >= 0 ? 1 : 0)) * shape.across;
  if (pieces == 0) return;
  const int parts = parts_of(pieces, table->limit), longer = pieces % parts, size = pieces / parts;
  int place[2] = {0, 0};
  if (lane() == 0) {
    if (longer > 0) place[0] = atomicAdd(&table->next[size + 1], longer);
    place[1] = atomicAdd(&table->next[size], parts - longer);
  }
  for (int& one : place) one = __shfl_sync(~0u, one, 0);
  const auto block_at = [&](int i) {
    const int number = begin + i;
    return rows.block(number + (missing >= 0 && number >= missing ? 1 : 0));
  };
  for (int part = lane(); part < parts; part += 32) {
    const int first = part_begin(pieces, parts, part), end = part_begin(pieces, parts, part + 1);
    const int number = part < longer ? place[0] + part : place[1] + part - longer;
    // Of a pattern that breaks rules there may be too many.
    if (number >= capacity) return;
    describe_run(shape, static_cast<int>(strip_row), first, end - first, block_at,
                 table->tasks() + number);
  }
}

template <typename Index>
void build(const PatternKey& key, const TaskShape& shape, cudaStream_t stream, TaskTable* table) {
  const PatternArrays<Index> p = arrays_of<Index>(key);
  const auto capacity = static_cast<int>(most_tasks(shape, key.nnzb, key.block_rows));
  auto* const behind = reinterpret_cast<int32_t*>(table->tasks() + capacity);
  const Leftovers left{behind, behind + key.block_rows};
  decide_kernel<<<1, kThreads, 0, stream>>>(p, shape, table, capacity, left);
  const auto blocks = ceil_div(key.block_rows * shape.strips, kWriters / 32);
  write_kernel<<<static_cast<unsigned>(blocks), kWriters, 0, stream>>>(p, shape, table, capacity, left);
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
