// The check of a pattern on the device: a thread a block row, one result for all.
#include <cuda_runtime.h>

#include "kernels/cuda/cuda_status.h"
#include "plan/capture_mode.h"
#include "plan/check_row.h"
#include "plan/memory_pool.h"
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

}  // namespace

Status check_pattern_cuda(const PatternKey& key, void* stream_handle, PatternFacts* facts) {
  const RelaxedCapture relaxed;
  const auto stream = static_cast<cudaStream_t>(stream_handle);
  void* memory = nullptr;
  Status status = pool_allocate(key.ordinal, sizeof(Found), stream_handle, &memory);
  if (!status) return status;
  auto* found = static_cast<Found*>(memory);
  constexpr int kThreads = 128;
  const auto blocks = static_cast<unsigned>(ceil_div(key.block_rows, kThreads));
  cudaError_t error = cudaMemsetAsync(found, 0, sizeof(Found), stream);
  if (error == cudaSuccess) {
    if (key.index_type == IndexType::kInt64) {
      check_kernel<<<blocks, kThreads, 0, stream>>>(static_cast<const int64_t*>(key.crow_indices),
                                                    static_cast<const int64_t*>(key.col_indices),
                                                    key.block_rows, key.block_cols, key.nnzb,
                                                    found);
    } else {
      check_kernel<<<blocks, kThreads, 0, stream>>>(static_cast<const int32_t*>(key.crow_indices),
                                                    static_cast<const int32_t*>(key.col_indices),
                                                    key.block_rows, key.block_cols, key.nnzb,
                                                    found);
    }
    error = cudaGetLastError();
  }
  if (error == cudaSuccess) status = count_groups_cuda(key, stream_handle, &found->groups);
  Found host{};
  if (error == cudaSuccess && status) {
    error = cudaMemcpyAsync(&host, found, sizeof(Found), cudaMemcpyDeviceToHost, stream);
  }
  if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
  pool_free(memory, stream_handle);
  if (error != cudaSuccess) return to_status(error, "checking the sparsity pattern");
  if (!status) return status;
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
