// Patterns of masks whose blocks fit as bits into a thread block's shared memory: one kernel puts
// them there, from bools or from lists, and lists them. A launch takes the host longer than the
// thread blocks of a pattern take to read all of it each.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "plan/mask_lists.h"
#include "plan/mask_rows.cuh"

namespace sparse_autotune {

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
__device__ inline void set_bit(uint32_t* bits, int words, int64_t row, int64_t column) {
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
__device__ inline void clear_bits(uint32_t* bits, int64_t count) {
  for (int64_t i = threadIdx.x; i < count; i += kThreads) bits[i] = 0;
  __syncthreads();
}
// By a whole thread block: mark(r, entry) for each entry of each row r. `range(r, &begin, &end)`
// says which are the row's, and `entry(at)` what it is. A warp has as many rows at once as lanes,
// and loads from several of them before it marks: otherwise it would wait for memory twice a row.
template <typename Range, typename Entry, typename Mark>
__device__ void each_entry(int64_t rows, const Range& range, const Entry& entry, const Mark& mark) {
  constexpr int kAtOnce = 4;
  for (int64_t first = warp_of_block(); first < rows; first += int64_t{kWarps} * kWarp) {
    const int64_t own = first + int64_t{kWarps} * lane();
    int64_t begin = 0, end = 0;
    if (own < rows) range(own, &begin, &end);
    const auto length = static_cast<int>(end - begin);
    const int longest = __reduce_max_sync(kAll, length);
    const auto some = static_cast<int>(min(ceil_div(rows - first, kWarps), int64_t{kWarp}));
#pragma unroll 1
    for (int i = 0; i < longest; i += kWarp) {
#pragma unroll 1
      for (int l = 0; l < some; l += kAtOnce) {
        int64_t found[kAtOnce];
        bool is_there[kAtOnce];
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k) {
          const int64_t at = __shfl_sync(kAll, begin, l + k) + i + lane();
          is_there[k] = i + lane() < __shfl_sync(kAll, length, l + k);
          found[k] = is_there[k] ? entry(at) : 0;
        }
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k) {
          if (is_there[k]) mark(first + int64_t{kWarps} * (l + k), found[k]);
        }
      }
    }
  }
}
struct OfRowLists {
  RowLists rows;

  __device__ void mark(const MaskGrid& shape, int64_t pattern, uint32_t* bits, int words) const {
    clear_bits(bits, shape.rows * words);
    each_entry(
        shape.rows,
        [&](int64_t r, int64_t* begin, int64_t* end) {
          const int64_t line = pattern * shape.rows + r;
          *begin = line * rows.most;
          *end = *begin + rows.count(line);
        },
        [&](int64_t at) { return detail::number(rows.columns, at, rows.is_wide); },
        [&](int64_t r, int64_t c) {
          if (c < 0 || c >= shape.columns) __trap();
          set_bit(bits, words, r, c);
        });
  }
};
// The lists of the other direction, whose columns are rows here.
struct OfOtherLists {
  GivenLists lists;

  __device__ void mark(const MaskGrid& shape, int64_t pattern, uint32_t* bits, int words) const {
    clear_bits(bits, shape.rows * words);
    each_entry(
        shape.columns,
        [&](int64_t r, int64_t* begin, int64_t* end) {
          const int64_t line = pattern * (shape.columns + 1) + r;
          *begin = max(lists.begin(line), int64_t{0});
          *end = min(lists.begin(line + 1), lists.capacity);
        },
        [&](int64_t at) { return lists.entry(at); },
        [&](int64_t r, int64_t c) {
          if (c >= 0 && c < shape.rows) set_bit(bits, words, c, r);
        });
  }
};

// Each thread block reads the whole pattern blockIdx.y, and lists this many of its rows.
constexpr int kRowsOfBlock = 2 * kWarps;
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

}  // namespace sparse_autotune
