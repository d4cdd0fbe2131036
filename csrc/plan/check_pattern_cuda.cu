// The check of a pattern on the device: a warp a block row, one result for all, in one kernel.
//
// Host time is what it costs, so nothing is enqueued but the kernel: the last thread block to end
// writes the result into the host's memory, and leaves the counts zero for the next check.
#include <cuda_runtime.h>

#include <map>
#include <mutex>

#include "kernels/cuda/host/cuda_status.h"
#include "plan/capture_mode.h"
#include "plan/check_row.h"
#include "plan/group_window.cuh"

namespace sparse_autotune {
namespace {

struct Found {
  unsigned long long longest_row;
  unsigned int faults;
  unsigned int cut_rows[kRowOrders], parts[kRowOrders];
  GroupCounts groups;
  unsigned int blocks_done;
};
constexpr int kFoundWords = sizeof(Found) / sizeof(unsigned);
static_assert(sizeof(Found) % sizeof(unsigned) == 0);

// By a whole warp, each lane with the length of a row.
__device__ void count_cuts(int64_t blocks, Found* found) {
  for (int order = 1; order < kRowOrders; ++order) {
    const int64_t limit = part_limit(order);
    const unsigned cut = __ballot_sync(~0u, blocks > limit);
    if (cut == 0) return;
    const auto parts = static_cast<unsigned>(blocks > limit ? (blocks + limit - 1) / limit : 0);
    const unsigned sum = __reduce_add_sync(~0u, parts);
    if (threadIdx.x % 32 == 0) {
      atomicAdd(&found->cut_rows[order], __popc(cut));
      atomicAdd(&found->parts[order], sum);
    }
  }
}

// check_row() by a warp.
template <typename Index>
__device__ RowCheck check_row_by_warp(const PatternArrays<Index>& p, int64_t row) {
  RowCheck result = check_ends(p.crow, row, p.block_rows, p.nnzb);
  const int64_t begin = p.crow[row], end = begin + result.blocks;
  uint32_t faults = 0;
  for (int64_t at = begin + threadIdx.x % 32; at < end; at += 32) {
    faults |= check_column(p.col[at], at == begin ? -1 : int64_t{p.col[at - 1]}, p.block_cols);
  }
  result.faults |= __reduce_or_sync(~0u, faults);
  return result;
}

// By a warp of the last thread block.
__device__ void publish(Found* found, Found* result) {
  __threadfence();
  auto* counts = reinterpret_cast<unsigned*>(found);
  auto* words = reinterpret_cast<unsigned*>(result);
  for (int i = threadIdx.x % 32; i < kFoundWords; i += 32) {
    words[i] = __ldcg(counts + i);
    counts[i] = 0;
  }
}

// By thread blocks of kMaxGroupRows warps, each with that many rows.
template <typename Index>
__global__ void __launch_bounds__(32 * kMaxGroupRows)
    check_kernel(const PatternArrays<Index> p, bool counts_groups, Found* found, Found* result) {
  __shared__ uint32_t bits[kMaxGroupRows][kWindowWords];
  __shared__ RowCheck rows[kMaxGroupRows];
  // Numbered as a heap: the group of all rows is 1, the halves of group i are 2 i and 2 i + 1.
  __shared__ int columns[kMaxGroupRows];
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const int64_t row = int64_t{blockIdx.x} * kMaxGroupRows + warp;
  GroupWindow<Index> window(bits, kMaxGroupRows, row, p);
  RowCheck mine{0, 0};
  if (row < p.block_rows) mine = check_row_by_warp(p, row);
  if (lane == 0) {
    rows[warp] = mine;
    columns[warp] = 0;
  }
  for (int64_t first = 0; counts_groups && first < p.block_cols; first += kWindowColumns) {
    window.load(p, first);
    // A warp to each group but the first's number 0, which does not exist.
    if (warp > 0) {
      const int level = 31 - __clz(warp), count = kMaxGroupRows >> level;
      const int sum = window.columns_of((warp - (1 << level)) * count, count);
      if (lane == 0) columns[warp] += sum;
    }
    __syncthreads();
  }
  __syncthreads();
  if (warp > 0) return;
  const RowCheck r = rows[lane];
  if (r.faults != 0) atomicOr(&found->faults, r.faults);
  if (r.blocks > 0) atomicMax(&found->longest_row, static_cast<unsigned long long>(r.blocks));
  count_cuts(r.blocks, found);
  if (lane > 0 && columns[lane] > 0) {
    const int grouping = kGroupings - 1 - (31 - __clz(lane));
    atomicAdd(&found->groups.columns[grouping], columns[lane]);
    atomicMax(&found->groups.longest[grouping], columns[lane]);
  }
  __threadfence();
  __syncwarp();
  unsigned before = 0;
  if (lane == 0) before = atomicAdd(&found->blocks_done, 1);
  if (__shfl_sync(~0u, before, 0) == gridDim.x - 1) publish(found, result);
}

// Where a device counts and where the host reads it, kept: making memory for each check would take
// longer than the check. One check at a time on a device; it ends with a synchronisation anyway.
struct Counts {
  std::mutex mutex;
  Found* found = nullptr;   // on the device
  Found* host = nullptr;    // page-locked
  Found* result = nullptr;  // the same memory as the device knows it
  bool zeros = false;       // `found` is ready for the next check
};

Counts& counts_of(int ordinal) {
  static std::mutex counts_mutex;
  static std::map<int, Counts> counts;
  const std::lock_guard<std::mutex> lock(counts_mutex);
  return counts[ordinal];
}

cudaError_t make(Counts* counts) {
  cudaError_t error = cudaSuccess;
  if (counts->found == nullptr) error = cudaMalloc(&counts->found, sizeof(Found));
  if (error == cudaSuccess && counts->host == nullptr) {
    error =
        cudaHostAlloc(&counts->host, sizeof(Found), cudaHostAllocPortable | cudaHostAllocMapped);
  }
  if (error == cudaSuccess && counts->result == nullptr) {
    error = cudaHostGetDevicePointer(reinterpret_cast<void**>(&counts->result), counts->host, 0);
  }
  return error;
}

template <typename Index>
void launch_check(const PatternKey& key, cudaStream_t stream, const Counts& counts) {
  const auto blocks = static_cast<unsigned>(ceil_div(key.block_rows, kMaxGroupRows));
  const bool counts_groups = key.nnzb <= INT32_MAX && key.block_cols <= kMaxGroupedColumns;
  check_kernel<<<blocks, 32 * kMaxGroupRows, 0, stream>>>(arrays_of<Index>(key), counts_groups,
                                                          counts.found, counts.result);
}

}  // namespace

Status check_pattern_cuda(const PatternKey& key, void* stream_handle, PatternFacts* facts) {
  *facts = {};
  if (key.block_rows == 0) return Status::ok();  // a kernel has at least one thread block
  const RelaxedCapture relaxed;
  const auto stream = static_cast<cudaStream_t>(stream_handle);
  Counts& counts = counts_of(key.ordinal);
  const std::lock_guard<std::mutex> lock(counts.mutex);
  cudaError_t error = make(&counts);
  if (error == cudaSuccess && !counts.zeros) {
    error = cudaMemsetAsync(counts.found, 0, sizeof(Found), stream);
  }
  counts.zeros = false;
  if (error == cudaSuccess) {
    if (key.index_type == IndexType::kInt64) {
      launch_check<int64_t>(key, stream, counts);
    } else {
      launch_check<int32_t>(key, stream, counts);
    }
    error = cudaGetLastError();
  }
  if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
  if (error != cudaSuccess) return to_status(error, "checking the sparsity pattern");
  counts.zeros = true;
  const Found& host = *counts.host;
  facts->faults = host.faults;
  facts->longest_row = static_cast<int64_t>(host.longest_row);
  facts->group_counts = host.groups;
  for (int order = 1; order < kRowOrders; ++order) {
    facts->row_cuts.rows[order] = static_cast<int32_t>(host.cut_rows[order]);
    facts->row_cuts.parts[order] = static_cast<int32_t>(host.parts[order]);
  }
  return Status::ok();
}

}  // namespace sparse_autotune
