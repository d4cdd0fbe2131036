// Lists of a mask's blocks on the device. Host time is what a new mask costs, most of it launches,
// so that one kernel does all of it where it can: each thread block adds up the counts of all rows
// before its own, and its warps write a row each. It counts the rows of a rule from its numbers.
// The blocks of a pattern that comes as bools or as lists it first puts down as bits in shared
// memory. Patterns of more bits than fit there take two to four launches, with counts and marks in
// scratch memory.
#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/host/cuda_status.h"
#include "plan/mask_bits.cuh"
#include "plan/mask_lists.h"
#include "plan/mask_rows.cuh"

namespace sparse_autotune {
namespace {

// Rows of patterns: how many blocks one has, and which.
struct GridRows {
  const uint8_t* grid;
  const int32_t* counts;
  MaskGrid shape;

  __device__ int count(int64_t pattern, int64_t r) const {
    return counts[pattern * shape.rows + r];
  }
  __device__ GridRow row(int64_t pattern, int64_t r) const {
    return {grid + (pattern * shape.rows + r) * shape.columns};
  }
};
// Of documents whose ends are parameters of the kernel, as they are on the host.
struct KnownRuleRows {
  MaskRule rule;
  int64_t ends[kMostKnownEnds];

  __device__ RuleRow row(int64_t pattern, int64_t r) const {
    MaskRule here = rule;
    here.ends = ends;
    return here.row(pattern, r);
  }
  __device__ int count(int64_t pattern, int64_t r) const { return row(pattern, r).count(); }
};
struct RuleRows {
  MaskRule rule;
  __device__ int count(int64_t pattern, int64_t r) const { return rule.row(pattern, r).count(); }
  __device__ RuleRow row(int64_t pattern, int64_t r) const { return rule.row(pattern, r); }
};

__global__ void __launch_bounds__(kThreads)
    count_kernel(const uint8_t* grid, int64_t lines, int64_t columns, int32_t* counts) {
  const int64_t line = int64_t{blockIdx.x} * kWarps + warp_of_block();
  if (line >= lines) return;
  const GridRow row{grid + line * columns};
  int count = 0;
#pragma unroll 4
  for (int64_t first = 0; first < columns; first += kWarp) {
    count += __popc(stored(row, columns, first));
  }
  if (lane() == 0) counts[line] = count;
}

// blockIdx.x counts groups of kWarps rows of the pattern blockIdx.y.
template <typename Rows>
__global__ void __launch_bounds__(kThreads)
    list_kernel(MaskGrid shape, const __grid_constant__ Rows rows, MaskLists out) {
  list_some_rows(shape, rows, blockIdx.y, int64_t{blockIdx.x} * kWarps, kWarps, out);
}

// Each warp takes a row of the lists, and marks it in the grid whose rows are columns.
__global__ void __launch_bounds__(kThreads)
    mark_kernel(MaskGrid shape, GivenLists lists, uint8_t* turned) {
  const int64_t line = int64_t{blockIdx.x} * kWarps + warp_of_block();
  if (line >= shape.lines()) return;
  const int64_t pattern = line / shape.rows, r = line % shape.rows;
  const int64_t begin = max(lists.begin(line + pattern), int64_t{0});
  const int64_t end = min(lists.begin(line + pattern + 1), lists.capacity);
  for (int64_t i = begin + lane(); i < end; i += kWarp) {
    const int64_t c = lists.entry(i);
    if (c >= 0 && c < shape.columns) turned[pattern * shape.room() + c * shape.rows + r] = 1;
  }
}

__global__ void __launch_bounds__(kThreads)
    mark_rows_kernel(MaskGrid shape, RowLists rows, uint8_t* grid) {
  const int64_t line = int64_t{blockIdx.x} * kWarps + warp_of_block();
  if (line >= shape.lines()) return;
  const int64_t count = rows.count(line);
  for (int64_t i = lane(); i < count; i += kWarp) {
    const int64_t c = rows.column(line, i);
    if (c < 0 || c >= shape.columns) __trap();
    grid[line * shape.columns + c] = 1;
  }
}

unsigned groups(int64_t lines) { return static_cast<unsigned>(ceil_div(lines, kWarps)); }

template <typename Rows>
cudaError_t list(const MaskGrid& shape, const Rows& rows, const MaskLists& out,
                 cudaStream_t stream) {
  if (shape.blocks() == 0) return clear_begins(shape, out, stream);
  const dim3 blocks(groups(shape.rows), static_cast<unsigned>(shape.patterns));
  list_kernel<<<blocks, kThreads, 0, stream>>>(shape, rows, out);
  return cudaGetLastError();
}

cudaError_t list(const MaskGrid& shape, const uint8_t* grid, const MaskLists& out, int32_t* counts,
                 cudaStream_t stream) {
  if (shape.blocks() > 0) {
    count_kernel<<<groups(shape.lines()), kThreads, 0, stream>>>(grid, shape.lines(), shape.columns,
                                                                 counts);
  }
  return list(shape, GridRows{grid, counts, shape}, out, stream);
}

// Lists the grid that `mark` writes, where nothing is stored at first.
template <typename Mark>
cudaError_t list_marked(const MaskGrid& shape, const Mark& mark, const MaskLists& out,
                        void* scratch, cudaStream_t stream) {
  auto* const counts = static_cast<int32_t*>(scratch);
  auto* const grid = reinterpret_cast<uint8_t*>(counts + shape.lines());
  if (shape.blocks() > 0) {
    const auto bytes = static_cast<size_t>(shape.blocks());
    const cudaError_t error = cudaMemsetAsync(grid, 0, bytes, stream);
    if (error != cudaSuccess) return error;
    mark(grid);
  }
  return list(shape, grid, out, counts, stream);
}

}  // namespace

Status list_blocks_cuda(const MaskGrid& shape, const uint8_t* grid, const MaskLists& out,
                        void* scratch, void* handle) {
  const auto stream = static_cast<cudaStream_t>(handle);
  return to_status(lists_in_one(shape)
                       ? list_bits(shape, OfGrid{grid}, out, stream)
                       : list(shape, grid, out, static_cast<int32_t*>(scratch), stream),
                   "listing the blocks of a mask");
}

Status list_rule_cuda(const MaskGrid& shape, const MaskRule& rule, int64_t known_ends,
                      const MaskLists& out, void* handle) {
  const auto stream = static_cast<cudaStream_t>(handle);
  KnownRuleRows rows{rule, {}};
  std::copy_n(rule.ends, known_ends, rows.ends);
  return to_status(
      known_ends > 0 ? list(shape, rows, out, stream) : list(shape, RuleRows{rule}, out, stream),
      "listing the blocks of a rule");
}

Status list_rows_cuda(const MaskGrid& shape, const RowLists& rows, const MaskLists& out,
                      void* scratch, void* handle) {
  const auto stream = static_cast<cudaStream_t>(handle);
  const auto mark = [&](uint8_t* grid) {
    mark_rows_kernel<<<groups(shape.lines()), kThreads, 0, stream>>>(shape, rows, grid);
  };
  return to_status(lists_in_one(shape) ? list_bits(shape, OfRowLists{rows}, out, stream)
                                       : list_marked(shape, mark, out, scratch, stream),
                   "listing the blocks of a mask's rows");
}

Status turn_lists_cuda(const MaskGrid& shape, const GivenLists& lists, const MaskLists& out,
                       void* scratch, void* handle) {
  const auto stream = static_cast<cudaStream_t>(handle);
  const MaskGrid turned{shape.patterns, shape.columns, shape.rows};
  const auto mark = [&](uint8_t* grid) {
    mark_kernel<<<groups(shape.lines()), kThreads, 0, stream>>>(shape, lists, grid);
  };
  return to_status(lists_in_one(turned) ? list_bits(turned, OfOtherLists{lists}, out, stream)
                                        : list_marked(turned, mark, out, scratch, stream),
                   "listing the blocks of a mask by column");
}

}  // namespace sparse_autotune
