// Asking into L2 what is read first, while the launch before ends. That is no read: what that
// launch still writes, L2 has, too.
#pragma once

#include <cstdint>

#include "operators/product/product.h"

namespace sparse_autotune {

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

}  // namespace sparse_autotune
