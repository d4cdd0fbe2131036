// The check of a pattern on the device: a thread a block row, one result for all.
#include <cuda_runtime.h>

#include <map>
#include <mutex>

#include "kernels/cuda/cuda_status.h"
#include "plan/capture_mode.h"
#include "plan/check_row.h"
#include "plan/row_groups.h"

namespace sparse_autotune {
namespace {

struct Found {
  unsigned long long longest_row;
  unsigned int faults;
  unsigned int cut_rows[kRowOrders], parts[kRowOrders];
  GroupCounts groups;
};

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

template <typename Index>
__global__ void check_kernel(const Index* crow, const Index* col, int64_t block_rows,
                             int64_t block_cols, int64_t nnzb, Found* found) {
  const int64_t row = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  RowCheck r{0, 0};
  if (row < block_rows) r = check_row(crow, col, row, block_rows, block_cols, nnzb);
  if (r.faults != 0) atomicOr(&found->faults, r.faults);
  if (row < block_rows) {
    atomicMax(&found->longest_row, static_cast<unsigned long long>(r.blocks));
  }
  count_cuts(r.blocks, found);
}

// Where a device counts and where the host reads it, kept: making memory for each check would take
// longer than the check. One check at a time on a device; it ends with a synchronisation anyway.
struct Counts {
  std::mutex mutex;
  Found* found = nullptr;  // on the device
  Found* host = nullptr;   // page-locked
  bool zeros = false;      // `found` is ready for the next check
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
    error = cudaHostAlloc(&counts->host, sizeof(Found), cudaHostAllocPortable);
  }
  return error;
}

template <typename Index>
void launch_check(const PatternKey& key, cudaStream_t stream, Found* found) {
  constexpr int kThreads = 128;
  const auto blocks = static_cast<unsigned>(ceil_div(key.block_rows, kThreads));
  check_kernel<<<blocks, kThreads, 0, stream>>>(static_cast<const Index*>(key.crow_indices),
                                                static_cast<const Index*>(key.col_indices),
                                                key.block_rows, key.block_cols, key.nnzb, found);
}

}  // namespace

Status check_pattern_cuda(const PatternKey& key, void* stream_handle, PatternFacts* facts) {
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
      launch_check<int64_t>(key, stream, counts.found);
    } else {
      launch_check<int32_t>(key, stream, counts.found);
    }
    error = cudaGetLastError();
  }
  Status status = Status::ok();
  if (error == cudaSuccess) status = count_groups_cuda(key, stream_handle, &counts.found->groups);
  if (error == cudaSuccess && status) {
    error =
        cudaMemcpyAsync(counts.host, counts.found, sizeof(Found), cudaMemcpyDeviceToHost, stream);
  }
  if (error == cudaSuccess) error = cudaMemsetAsync(counts.found, 0, sizeof(Found), stream);
  if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
  if (error != cudaSuccess) return to_status(error, "checking the sparsity pattern");
  counts.zeros = true;
  if (!status) return status;
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
