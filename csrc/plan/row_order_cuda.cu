// A row order on the device: one thread block counts entries by length and hands out their places.
#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/device/warp_sum.cuh"
#include "kernels/cuda/host/cuda_status.h"
#include "plan/row_order.h"

namespace sparse_autotune {
namespace {

constexpr int kThreads = 1024, kBins = 4096, kBinsEach = kBins / kThreads;

// Entries fall into bins by length, the longest into the first; within a bin nobody is sorted.
struct Bins {
  int64_t longest;

  __device__ int of(int64_t blocks) const {
    const int64_t less = longest - blocks;
    return static_cast<int>(longest < kBins ? less : less * kBins / (longest + 1));
  }
};

// How a row is cut: `longer` parts of one block more than the others, and these.
struct Cut {
  int parts, longer, blocks;

  __device__ Cut(int row_blocks, int limit)
      : parts(row_blocks > limit ? parts_of(row_blocks, limit) : 1),
        longer(row_blocks % parts),
        blocks(row_blocks / parts) {}
};

template <typename Index>
__global__ void __launch_bounds__(kThreads)
    row_order_kernel(const Index* crow, int block_rows, int limit, Bins bins, OrderedRow* entries,
                     CutRow* cut_rows) {
  __shared__ int places[kBins];  // entries in each bin, then the next entry's place
  __shared__ int sums[kThreads / 32];
  __shared__ int cuts, slots;
  const int me = static_cast<int>(threadIdx.x), lane = me % 32, warp = me / 32;
  for (int i = me; i < kBins; i += kThreads) places[i] = 0;
  if (me == 0) cuts = slots = 0;
  __syncthreads();
  for (int row = me; row < block_rows; row += kThreads) {
    const Cut cut(static_cast<int>(crow[row + 1] - crow[row]), limit);
    if (cut.longer > 0) atomicAdd(&places[bins.of(cut.blocks + 1)], cut.longer);
    atomicAdd(&places[bins.of(cut.blocks)], cut.parts - cut.longer);
  }
  __syncthreads();

  // An exclusive sum: over a thread's bins, the threads of a warp, the warps.
  int mine[kBinsEach], total = 0;
  for (int i = 0; i < kBinsEach; ++i) {
    mine[i] = total;
    total += places[me * kBinsEach + i];
  }
  int before = sum_up_to(total);
  if (lane == 31) sums[warp] = before;
  __syncthreads();
  before -= total;
  for (int i = 0; i < warp; ++i) before += sums[i];
  for (int i = 0; i < kBinsEach; ++i) places[me * kBinsEach + i] = before + mine[i];
  __syncthreads();

  for (int row = me; row < block_rows; row += kThreads) {
    const auto begin = static_cast<int>(crow[row]), end = static_cast<int>(crow[row + 1]);
    const Cut cut(end - begin, limit);
    int first = -1;
    if (cut.parts > 1) {
      first = atomicAdd(&slots, cut.parts);
      cut_rows[atomicAdd(&cuts, 1)] = {row, first, cut.parts, 0};
    }
    int place = 0;
    for (int part = 0; part < cut.parts; ++part) {
      if (part == 0 && cut.longer > 0) {
        place = atomicAdd(&places[bins.of(cut.blocks + 1)], cut.longer);
      }
      if (part == cut.longer) {
        place = atomicAdd(&places[bins.of(cut.blocks)], cut.parts - cut.longer);
      }
      entries[place++] = {row, begin + part_begin(end - begin, cut.parts, part),
                          begin + part_begin(end - begin, cut.parts, part + 1),
                          first < 0 ? -1 : first + part};
    }
  }
}

}  // namespace

Status build_row_order_cuda(const PatternKey& key, const PatternFacts& facts, int order,
                            void* stream_handle, OrderedRow* entries) {
  const auto stream = static_cast<cudaStream_t>(stream_handle);
  const int64_t limit = order == kWholeRows ? INT32_MAX : part_limit(order);
  const Bins bins{std::min(facts.longest_row, limit)};
  const auto rows = static_cast<int>(key.block_rows), parts = static_cast<int>(limit);
  auto* cut_rows = reinterpret_cast<CutRow*>(entries + key.block_rows - facts.row_cuts.rows[order] +
                                             facts.row_cuts.parts[order]);
  if (key.index_type == IndexType::kInt64) {
    row_order_kernel<<<1, kThreads, 0, stream>>>(static_cast<const int64_t*>(key.crow_indices),
                                                 rows, parts, bins, entries, cut_rows);
  } else {
    row_order_kernel<<<1, kThreads, 0, stream>>>(static_cast<const int32_t*>(key.crow_indices),
                                                 rows, parts, bins, entries, cut_rows);
  }
  return to_status(cudaGetLastError(), "sorting block rows");
}

Status order_segments_cuda(const int32_t* ends, int64_t count, int64_t longest, void* stream,
                           OrderedRow* entries) {
  row_order_kernel<<<1, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      ends, static_cast<int>(count), INT32_MAX, Bins{longest}, entries, nullptr);
  return to_status(cudaGetLastError(), "sorting row groups");
}

}  // namespace sparse_autotune
