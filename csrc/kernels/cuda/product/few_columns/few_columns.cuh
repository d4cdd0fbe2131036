// What the kernels of few columns share: what they are told besides; how they overlap the launch
// before: what they ask into L2, which is no read (what that launch still writes, L2 has, too), and
// how they read an index; and fragments for mma.sync loaded straight from global memory.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/device/product_arguments.cuh"
#include "operators/product/product.h"

namespace sparse_autotune {

struct FewColumnsArguments : ProductArguments {
  int64_t c_row, c_column, c_batch_stride;  // elements from one to the next
  int n, block_m, block_k;
  bool stores_quads;  // 8 bytes of a column of C at a time
};

// Has L2 fetch a line of 128 bytes.
__device__ __forceinline__ void prefetch_line(const void* from, int64_t line) {
  asm volatile("prefetch.global.L2 [%0];\n" ::"l"(static_cast<const char*>(from) + line * 128));
}

// Has L2 fetch so many bytes.
__device__ __forceinline__ void ask_bulk(const char* from, unsigned bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;\n" ::"l"(from), "r"(bytes) : "memory");
}

// Lines of both arrays of indices and of B: of that so many stretches, so many bytes apart.
struct AheadLines {
  const void* crow_indices;
  const void* col_indices;
  const char* b;
  unsigned crow_lines, col_lines, b_lines, stretches;
  int64_t stride;
};

inline AheadLines lines_ahead(const Problem& p, const Launch& l) {
  const auto lines = [](int64_t bytes) { return static_cast<unsigned>(ceil_div(bytes, 128)); };
  const int64_t item = size_of(p.dtype);
  const bool b_rows = p.b_layout == Layout::kRowMajor;
  const int64_t length = b_rows ? p.n : p.k, stretches = b_rows ? p.k : p.n;
  const bool gaps = p.ldb != length;
  return {l.crow_indices,
          l.col_indices,
          static_cast<const char*>(l.b),
          lines((block_rows(p) + 1) * size_of(p.index_type)),
          lines(p.nnzb * size_of(p.index_type)),
          lines((gaps ? length : p.k * p.n) * item),
          gaps ? static_cast<unsigned>(stretches) : 1,
          p.ldb * item};
}

// Each thread along x asks for a line of each.
__device__ __forceinline__ void ask_ahead(const AheadLines& ahead) {
  if (blockIdx.y + blockIdx.z > 0) return;
  const unsigned line = blockIdx.x * blockDim.x + threadIdx.x;
  if (line < ahead.b_lines * ahead.stretches) {
    const unsigned stretch = line / ahead.b_lines;
    prefetch_line(ahead.b + stretch * ahead.stride, line - stretch * ahead.b_lines);
  }
  if (line < ahead.crow_lines) prefetch_line(ahead.crow_indices, line);
  if (line < ahead.col_lines) prefetch_line(ahead.col_indices, line);
}

// ld.global.nc is faster, but of words that should stay the same from the kernel's start on, and
// ptxas may move it in front of griddepcontrol.wait, where the launch before still writes them. It
// did where launch_dependents does not stand right behind: there loads are plain (kPlain).
template <bool kPlain>
__device__ __forceinline__ int load_index_word(const char* from) {
  if constexpr (!kPlain) return __ldg(reinterpret_cast<const int*>(from));
  int word;
  asm volatile("ld.global.s32 %0, [%1];\n" : "=r"(word) : "l"(from));
  return word;
}

// A chunk is 32 k: two slices of mma m16n8k16. Which k stands where in them does not matter as long
// as A and B agree, and neither does the order of A's rows and of B's columns, as long as C knows.
// So every load is as wide as can be. Lane 4 * g + t needs, of each of its rows (A) and columns
// (B), the vector k = 8t ... 8t + 7: words 0 and 1 for the first slice, 2 and 3 for the second.
// Where k is contiguous, that is one load of 16 bytes. Where rows or columns are, a lane loads
// neighbours of them at the four k that vector g / 2 has for g % 2, and movmatrix hands them round.

constexpr int kVector = 8;
constexpr int kChunkK = 32, kChunkVectors = kChunkK / kVector;

// How B is loaded: single elements; vectors; neighbouring columns.
enum class BAccess { kElements, kAlongK, kAlongColumns };

// Of a lane's kWords words of neighbouring rows or columns, up to four are one load, and lane t's
// load stands beside lane t + 1's. Which of them lane position c (g for operands, 2t and 2t + 1 for
// sums) has in word `word`:
template <int kWords>
__device__ __forceinline__ constexpr int spread(int word, int c) {
  constexpr int kLoad = kWords < 4 ? kWords : 4;
  return word / kLoad * (8 * kLoad) + c / 2 * (2 * kLoad) + word % kLoad * 2 + c % 2;
}

// In place of the vector's word `slice` * 2 + `half`, what this lane loads for others: its k.
__device__ __forceinline__ int lent_k(int word) { return word * 2 + threadIdx.x / 4 % 2; }

// How words are loaded: of B; of values, which are read once and should not push B out of L1; of
// values in halves of lines, whose neighbours L2 should fetch as well.
enum class LoadOf { kB, kValues, kHalfLines };

// Loads words if `present`, else leaves them. kPlain: see load_index_word().
template <bool kPlain, LoadOf kOf, int kWords>
__device__ __forceinline__ void load_if(bool present, uint32_t* to, const void* from) {
  static_assert(kWords == 1 || kWords == 2 || kWords == 4, "there is code for these");
#define LOAD(how)                                                                                  \
  if constexpr (kWords == 4) {                                                                     \
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %5, 0;\n@p ld.global" how                       \
                 ".v4.u32 {%0, %1, %2, %3}, [%4];\n}\n"                                            \
                 : "+r"(to[0]), "+r"(to[1]), "+r"(to[2]), "+r"(to[3])                              \
                 : "l"(from), "r"(static_cast<int>(present)));                                     \
  } else if constexpr (kWords == 2) {                                                              \
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %3, 0;\n@p ld.global" how                       \
                 ".v2.u32 {%0, %1}, [%2];\n}\n"                                                    \
                 : "+r"(to[0]), "+r"(to[1])                                                        \
                 : "l"(from), "r"(static_cast<int>(present)));                                     \
  } else {                                                                                         \
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %2, 0;\n@p ld.global" how ".u32 %0, [%1];\n}\n" \
                 : "+r"(to[0])                                                                     \
                 : "l"(from), "r"(static_cast<int>(present)));                                     \
  }
  if constexpr (kOf == LoadOf::kB && kPlain) {
    LOAD("")
  } else if constexpr (kOf == LoadOf::kB) {
    LOAD(".nc")
  } else if constexpr (kOf == LoadOf::kValues && kPlain) {
    LOAD(".L1::no_allocate")
  } else if constexpr (kOf == LoadOf::kValues) {
    LOAD(".nc.L1::no_allocate")
  } else if constexpr (kPlain) {
    LOAD(".L1::no_allocate.L2::256B")
  } else {
    LOAD(".nc.L1::no_allocate.L2::256B")
  }
#undef LOAD
}

// A vector whose elements lie `stride` apart.
__device__ __forceinline__ void load_elements(uint32_t* to, const uint16_t* from, int stride) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t low = __ldg(from + 2 * i * stride), high = __ldg(from + (2 * i + 1) * stride);
    to[i] = low | high << 16;
  }
}

// sum += A * B over a chunk: two rows of A, one column of B.
template <typename T>
__device__ __forceinline__ void multiply_chunk(float* sum, const uint32_t (&low)[4],
                                               const uint32_t (&high)[4], const uint32_t (&b)[4]) {
#pragma unroll
  for (int slice = 0; slice < 4; slice += 2) {
    const uint32_t a[4] = {low[slice], high[slice], low[slice + 1], high[slice + 1]};
    mma<T>(sum, a, b + slice);
  }
}

}  // namespace sparse_autotune
