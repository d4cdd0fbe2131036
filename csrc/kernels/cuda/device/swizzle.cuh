// Where a 16-byte chunk of a row-major tile lies in shared memory.
//
// Shared memory has 32 banks of 4 bytes, so 8 chunks can move at once when they differ modulo 8.
// Exchanging the chunks of a row by XOR with a number made from the row gives, without padding:
// one chunk of 8 consecutive rows (ldmatrix), neighbouring chunks of one row (cp.async), and the
// 8 words of two chunks in each of 4 consecutive rows (TF32's row-major B) are free of conflicts.
#pragma once

#include <cstdint>

namespace sparse_autotune {

// The number that `row` XORs its chunks with: the same for rows that differ by a multiple of 8, and
// swizzle(i + j) is swizzle(i) ^ swizzle(j) where i and j share no bit.
template <int kRowBytes>
__host__ __device__ constexpr uint32_t swizzle(uint32_t row) {
  static_assert(kRowBytes == 32 || kRowBytes == 64 || kRowBytes % 128 == 0,
                "rows divide the banks or are made of whole lines");
  if (kRowBytes == 32) return row >> 2 & 1;
  if (kRowBytes == 64) return row >> 1 & 3;
  return (row & 3) << 1 | (row >> 2 & 1);
}

// Byte offset of a chunk. In a tile aligned to 128 bytes, chunk ^ i lies at the address ^ (16 * i)
// for i < 2 (rows of 32 bytes), 4 (of 64) or 8.
template <int kRowBytes>
__host__ __device__ constexpr uint32_t chunk_offset(uint32_t row, uint32_t chunk) {
  return row * kRowBytes + ((chunk ^ swizzle<kRowBytes>(row)) << 4);
}

}  // namespace sparse_autotune
