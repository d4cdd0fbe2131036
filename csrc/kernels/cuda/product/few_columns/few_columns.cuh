// What the kernels of few columns share: what they are told besides, and how they overlap the
// launch before: what they ask into L2, which is no read (what that launch still writes, L2 has,
// too), and how they read an index.
#pragma once

#include <cstdint>

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

// Lines of both arrays of indices and of B.
struct AheadLines {
  const void* from[3];
  unsigned count[3];
};

// Of a B with gaps between its rows or columns, none.
inline AheadLines lines_ahead(const Problem& p, const Launch& l) {
  const auto lines = [](int64_t bytes) { return static_cast<unsigned>(ceil_div(bytes, 128)); };
  const bool gaps = p.ldb != (p.b_layout == Layout::kRowMajor ? p.n : p.k);
  return {{l.crow_indices, l.col_indices, l.b},
          {lines((block_rows(p) + 1) * size_of(p.index_type)),
           lines(p.nnzb * size_of(p.index_type)), gaps ? 0 : lines(p.k * p.n * size_of(p.dtype))}};
}

// Each thread along x asks for a line of each.
__device__ __forceinline__ void ask_ahead(const AheadLines& lines) {
  if (blockIdx.y + blockIdx.z > 0) return;
  const unsigned line = blockIdx.x * blockDim.x + threadIdx.x;
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    if (line < lines.count[i]) prefetch_line(lines.from[i], line);
  }
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

}  // namespace sparse_autotune
