// Lists of a mask's blocks on the device: a warp counts the blocks of a row, then thread blocks add
// up the counts of all rows before theirs, and their warps write a row each. A mask has at most
// some thousand block rows, so that adding them up anew in each thread block takes less time than
// another launch would. Rows of a rule are counted where they are added up.
#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/host/cuda_status.h"
#include "plan/mask_lists.h"

namespace sparse_autotune {
namespace {

constexpr int kWarp = 32, kWarps = 8, kThreads = kWarps * kWarp;
constexpr unsigned kAll = 0xffffffff;

__device__ int warp_of_block() { return static_cast<int>(threadIdx.x) / kWarp; }
__device__ int lane() { return static_cast<int>(threadIdx.x) % kWarp; }

// The sum of the warp's values, in each lane.
__device__ int warp_total(int value) {
  for (int step = kWarp / 2; step > 0; step /= 2) value += __shfl_xor_sync(kAll, value, step);
  return value;
}

// Of 32 neighbouring columns, those that the row stores.
template <typename Row>
__device__ unsigned stored(const Row& row, int64_t columns, int64_t first) {
  const auto c = static_cast<int32_t>(first) + lane();
  return __ballot_sync(kAll, c < columns && row.stores(c));
}

// Rows of patterns: how many blocks one has, and which.
struct GridRow {
  const uint8_t* bytes;
  __device__ bool stores(int32_t c) const { return bytes[c] != 0; }
};
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

// The blocks of a pattern's rows and of the first `some` of them, in each thread of the thread
// block.
struct Sums {
  int of_some, of_all;
};
template <typename Rows>
__device__ Sums sums_of(const Rows& rows, int64_t pattern, int64_t some, int64_t count) {
  __shared__ Sums of_warp[kWarps];
  Sums own{0, 0};
  for (int64_t i = threadIdx.x; i < count; i += kThreads) {
    const int number = rows.count(pattern, i);
    own.of_all += number;
    if (i < some) own.of_some += number;
  }
  own = {warp_total(own.of_some), warp_total(own.of_all)};
  if (lane() == 0) of_warp[warp_of_block()] = own;
  __syncthreads();
  Sums total{0, 0};
  for (const Sums& w : of_warp) {
    total.of_some += w.of_some;
    total.of_all += w.of_all;
  }
  return total;
}

// blockIdx.x counts groups of kWarps rows of the pattern blockIdx.y.
template <typename Rows>
__global__ void __launch_bounds__(kThreads)
    list_kernel(MaskGrid shape, const __grid_constant__ Rows rows, MaskLists out) {
  const int64_t pattern = blockIdx.y;
  const int64_t first_row = int64_t{blockIdx.x} * kWarps, r = first_row + warp_of_block();
  const Sums sums = sums_of(rows, pattern, first_row, shape.rows);
  if (r >= shape.rows) return;
  const bool is_before = lane() < warp_of_block();
  // Stored blocks before the row.
  const int own =
      sums.of_some + warp_total(is_before ? rows.count(pattern, first_row + lane()) : 0);
  const auto begin = static_cast<int32_t>(pattern * shape.room());
  int32_t at = begin + own;
  // Each block that is not stored has a place behind all that are.
  int32_t zero_at = begin + sums.of_all + static_cast<int32_t>(r * shape.columns) - own;
  int32_t* const begins = out.begins + pattern * (shape.rows + 1) + r;
  if (lane() == 0) begins[0] = at;
  const auto row = rows.row(pattern, r);
  const unsigned before = (1u << lane()) - 1;
#pragma unroll 4
  for (int64_t first = 0; first < shape.columns; first += kWarp) {
    const unsigned found = stored(row, shape.columns, first);
    const auto column = static_cast<int32_t>(first) + lane();
    if ((found >> lane() & 1) != 0) {
      out.entries[at + __popc(found & before)] = column;
    } else if (column < shape.columns) {
      out.entries[zero_at + __popc(~found & before)] = 0;
    }
    at += __popc(found);
    zero_at += min(kWarp, static_cast<int>(shape.columns - first)) - __popc(found);
  }
  if (lane() == 0 && r + 1 == shape.rows) begins[1] = at;
}

// Each warp takes a row of the lists, and marks it in the grid whose rows are columns.
__global__ void __launch_bounds__(kThreads)
    mark_kernel(MaskGrid shape, MaskLists lists, int64_t capacity, uint8_t* turned) {
  const int64_t line = int64_t{blockIdx.x} * kWarps + warp_of_block();
  if (line >= shape.lines()) return;
  const int64_t pattern = line / shape.rows, r = line % shape.rows;
  const int32_t* const begins = lists.begins + line + pattern;
  const int64_t begin = max(begins[0], 0), end = min(int64_t{begins[1]}, capacity);
  for (int64_t i = begin + lane(); i < end; i += kWarp) {
    const int64_t c = lists.entries[i];
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

// No pattern has rows where there are no lines, but each has a begin.
cudaError_t clear_begins(const MaskGrid& shape, const MaskLists& out, cudaStream_t stream) {
  const auto bytes = static_cast<size_t>(shape.patterns * (shape.rows + 1)) * sizeof(int32_t);
  return bytes == 0 ? cudaSuccess : cudaMemsetAsync(out.begins, 0, bytes, stream);
}

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
  return to_status(list(shape, grid, out, static_cast<int32_t*>(scratch), stream),
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
  return to_status(list_marked(shape, mark, out, scratch, stream),
                   "listing the blocks of a mask's rows");
}

Status turn_lists_cuda(const MaskGrid& shape, const MaskLists& lists, int64_t capacity,
                       const MaskLists& out, void* scratch, void* handle) {
  const auto stream = static_cast<cudaStream_t>(handle);
  const MaskGrid turned{shape.patterns, shape.columns, shape.rows};
  const auto mark = [&](uint8_t* grid) {
    mark_kernel<<<groups(shape.lines()), kThreads, 0, stream>>>(shape, lists, capacity, grid);
  };
  return to_status(list_marked(turned, mark, out, scratch, stream),
                   "listing the blocks of a mask by column");
}

}  // namespace sparse_autotune
