// Moves values without knowing their type: in chunks as wide as every address allows.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace sparse_autotune {

// Calls f with a chunk of the given number of bytes: 2, 4, 8 or 16.
template <typename F>
void with_chunk(int64_t bytes, F&& f) {
  switch (bytes) {
    case 16:
      return f(uint4{});
    case 8:
      return f(uint2{});
    case 4:
      return f(uint32_t{});
    default:
      return f(uint16_t{});
  }
}

// Largest chunk that divides `bytes`, given one that divides every other address.
constexpr int64_t chunk_bytes(int64_t bytes, int64_t alignment) {
  int64_t chunk = alignment < 16 ? alignment : 16;
  while (bytes % chunk != 0) chunk /= 2;
  return chunk;
}

// Largest power of two, at most 16, that divides the address.
inline int64_t alignment_of(const void* address) {
  const auto a = reinterpret_cast<uintptr_t>(address) | 16;
  return static_cast<int64_t>(a & (~a + 1));
}

constexpr int kConvertThreads = 256;

// Thread blocks per block row, so that a thread moves about four chunks in a row of average length.
inline unsigned convert_slices(int64_t chunks_per_row) {
  const int64_t slices = chunks_per_row / (kConvertThreads * 4) + 1;
  return static_cast<unsigned>(slices < 65535 ? slices : 65535);
}

}  // namespace sparse_autotune
