// Lists of a mask's blocks on the device. Host time is what a new mask costs, most of it launches,
// so that one kernel does all of it where it can: each thread block adds up the counts of all rows
// before its own, and its warps write a row each. It counts the rows of a rule from its numbers.
// The blocks of a pattern that comes as bools or as lists it first puts down as bits in shared
// memory. Patterns of more bits than fit there take two to four launches, with counts and marks in
// scratch memory.
#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/host/cuda_status.h"
#include "plan/mask_lists.h"

namespace sparse_autotune {
namespace {

constexpr int kWarp = 32, kWarps = 16, kThreads = kWarps * kWarp;
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

// Writes row r of a pattern, which has `sum` stored blocks, `before` of them in the rows before r.
template <typename Row>
__device__ void list_row(const MaskGrid& shape, const Row& row, int64_t pattern, int64_t r,
                         int before, int sum, const MaskLists& out) {
  const auto begin = static_cast<int32_t>(pattern * shape.room());
  int32_t at = begin + before;
  // Each block that is not stored has a place behind all that are.
  int32_t zero_at = begin + sum + static_cast<int32_t>(r * shape.columns) - before;
  int32_t* const begins = out.begins + pattern * (shape.rows + 1) + r;
  if (lane() == 0) begins[0] = at;
  const unsigned lower_lanes = (1u << lane()) - 1;
#pragma unroll 4
  for (int64_t first = 0; first < shape.columns; first += kWarp) {
    const unsigned found = stored(row, shape.columns, first);
    const auto column = static_cast<int32_t>(first) + lane();
    if ((found >> lane() & 1) != 0) {
      out.entries[at + __popc(found & lower_lanes)] = column;
    } else if (column < shape.columns) {
      out.entries[zero_at + __popc(~found & lower_lanes)] = 0;
    }
    at += __popc(found);
    zero_at += min(kWarp, static_cast<int>(shape.columns - first)) - __popc(found);
  }
  if (lane() == 0 && r + 1 == shape.rows) begins[1] = at;
}

// By a thread block: `some` rows of a pattern from `first_row` on, kWarps at a time.
template <typename Rows>
__device__ void list_some_rows(const MaskGrid& shape, const Rows& rows, int64_t pattern,
                               int64_t first_row, int64_t some, const MaskLists& out) {
  const Sums sums = sums_of(rows, pattern, first_row, shape.rows);
  const int64_t end_row = min(first_row + some, shape.rows);
  int before = sums.of_some;
  for (int64_t r0 = first_row; r0 < end_row; r0 += kWarps) {
    const bool counts = lane() < kWarps && r0 + lane() < end_row;
    const int count = counts ? rows.count(pattern, r0 + lane()) : 0;
    const int own = before + warp_total(lane() < warp_of_block() ? count : 0);
    const int64_t r = r0 + warp_of_block();
    if (r < end_row) {
      list_row(shape, rows.row(pattern, r), pattern, r, own, sums.of_all, out);
    }
    before += warp_total(count);
  }
}

// blockIdx.x counts groups of kWarps rows of the pattern blockIdx.y.
template <typename Rows>
__global__ void __launch_bounds__(kThreads)
    list_kernel(MaskGrid shape, const __grid_constant__ Rows rows, MaskLists out) {
  list_some_rows(shape, rows, blockIdx.y, int64_t{blockIdx.x} * kWarps, kWarps, out);
}

// The blocks of a pattern as bits, each row from a word on.
struct BitRow {
  const uint32_t* words;
  __device__ bool stores(int32_t c) const { return (words[c / kWarp] >> c % kWarp & 1) != 0; }
};
struct BitRows {
  const uint32_t* bits;
  int words;  // a row

  __device__ int count(int64_t, int64_t r) const {
    int sum = 0;
    for (int w = 0; w < words; ++w) sum += __popc(bits[r * words + w]);
    return sum;
  }
  __device__ BitRow row(int64_t, int64_t r) const { return {bits + r * words}; }
};
__device__ void set_bit(uint32_t* bits, int words, int64_t row, int64_t column) {
  atomicOr(&bits[row * words + column / kWarp], 1u << column % kWarp);
}

// Where a pattern's blocks come from: each sets the bits of them by a whole thread block.
struct OfGrid {
  const uint8_t* grid;

  __device__ void mark(const MaskGrid& shape, int64_t pattern, uint32_t* bits, int words) const {
    const uint8_t* const bytes = grid + pattern * shape.room();
    const auto count = static_cast<int>(shape.rows) * words;
    if (shape.columns % kWarp == 0 && reinterpret_cast<uintptr_t>(bytes) % sizeof(uint4) == 0) {
      const auto used = static_cast<int>(shape.columns) / kWarp;
#pragma unroll 4
      for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
        const int row = i / words, w = i % words;
        bits[i] =
            w < used ? word_of(reinterpret_cast<const uint4*>(bytes) + 2 * (row * used + w)) : 0;
      }
      return;
    }
#pragma unroll 4
    for (int i = warp_of_block(); i < count; i += kWarps) {
      const unsigned found = stored(GridRow{bytes + i / words * shape.columns}, shape.columns,
                                    int64_t{i % words} * kWarp);
      if (lane() == 0) bits[i] = found;
    }
  }

 private:
  // A bit for each byte that is not 0, the lowest first.
  static __device__ unsigned bits_of(unsigned four_bytes) {
    return (__vcmpne4(four_bytes, 0) & 0x08040201u) * 0x01010101u >> 24;
  }
  static __device__ unsigned bits_of(uint4 b) {
    return bits_of(b.x) | bits_of(b.y) << 4 | bits_of(b.z) << 8 | bits_of(b.w) << 12;
  }
  static __device__ unsigned word_of(const uint4* b) { return bits_of(b[0]) | bits_of(b[1]) << 16; }
};
// Nothing is marked before these; all threads of the thread block call it.
__device__ void clear_bits(uint32_t* bits, int64_t count) {
  for (int64_t i = threadIdx.x; i < count; i += kThreads) bits[i] = 0;
  __syncthreads();
}
struct OfRowLists {
  RowLists rows;

  __device__ void mark(const MaskGrid& shape, int64_t pattern, uint32_t* bits, int words) const {
    clear_bits(bits, shape.rows * words);
    for (int64_t r = warp_of_block(); r < shape.rows; r += kWarps) {
      const int64_t line = pattern * shape.rows + r, count = rows.count(line);
      for (int64_t i = lane(); i < count; i += kWarp) {
        const int64_t c = rows.column(line, i);
        if (c < 0 || c >= shape.columns) __trap();
        set_bit(bits, words, r, c);
      }
    }
  }
};
// The lists of the other direction, whose columns are rows here.
struct OfOtherLists {
  GivenLists lists;

  __device__ void mark(const MaskGrid& shape, int64_t pattern, uint32_t* bits, int words) const {
    clear_bits(bits, shape.rows * words);
    for (int64_t r = warp_of_block(); r < shape.columns; r += kWarps) {
      const int64_t line = pattern * (shape.columns + 1) + r;
      const int64_t begin = max(lists.begin(line), int64_t{0});
      const int64_t end = min(lists.begin(line + 1), lists.capacity);
      for (int64_t i = begin + lane(); i < end; i += kWarp) {
        const int64_t c = lists.entry(i);
        if (c >= 0 && c < shape.rows) set_bit(bits, words, c, r);
      }
    }
  }
};

// Each thread block reads the whole pattern blockIdx.y, and lists this many of its rows.
constexpr int kRowsOfBlock = 4 * kWarps;
template <typename Source>
__global__ void __launch_bounds__(kThreads)
    list_bits_kernel(MaskGrid shape, const Source source, MaskLists out) {
  extern __shared__ uint32_t bits[];
  const auto words = static_cast<int>(bit_words_of_row(shape));
  source.mark(shape, blockIdx.y, bits, words);
  __syncthreads();
  const int64_t first_row = int64_t{blockIdx.x} * kRowsOfBlock;
  list_some_rows(shape, BitRows{bits, words}, blockIdx.y, first_row, kRowsOfBlock, out);
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

// Whose pattern lists_in_one() says that its bits fit.
template <typename Source>
cudaError_t list_bits(const MaskGrid& shape, const Source& source, const MaskLists& out,
                      cudaStream_t stream) {
  if (shape.blocks() == 0) return clear_begins(shape, out, stream);
  const dim3 blocks(static_cast<unsigned>(ceil_div(shape.rows, kRowsOfBlock)),
                    static_cast<unsigned>(shape.patterns));
  const auto bytes = static_cast<size_t>(bit_words(shape)) * sizeof(uint32_t);
  list_bits_kernel<<<blocks, kThreads, bytes, stream>>>(shape, source, out);
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
