// Copies of A's and B's tiles to shared memory, swizzled, shared out among a thread block.
//
// k comes in slices of 32 bytes (what one mma consumes) of two 16-byte chunks; a step is
// Tile::kSlices of them. Each thread belongs to one slice of the step, so it needs one address a
// step wherever the slices come from.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/cp_async.cuh"
#include "kernels/cuda/device/swizzle.cuh"

namespace sparse_autotune {

constexpr int kChunkBytes = 16, kSliceBytes = 32;
template <typename T>
constexpr int kChunk = kChunkBytes / static_cast<int>(sizeof(T));  // elements
template <typename T>
constexpr int kSlice = 2 * kChunk<T>;

// Copies what has k contiguous, A's rows or a column-major B's columns, to `kLines` lines of
// kStepBytes. A thread copies one chunk, always the same, of every kApart-th line.
template <typename T, typename Tile, int kLines>
struct LineLoader {
  static constexpr int kChunks = Tile::kStepBytes / kChunkBytes;
  static constexpr int kApart = Tile::kThreads / kChunks;
  static_assert(kApart % 8 == 0, "all of a thread's lines must have the same swizzle");

  static __device__ __forceinline__ int line() { return threadIdx.x / kChunks; }
  static __device__ __forceinline__ int slice() { return threadIdx.x % kChunks / 2; }
  static __device__ __forceinline__ int element() { return threadIdx.x % 2 * kChunk<T>; }

  // `from`: the thread's chunk of its first line; `stride`: elements from one line to the next.
  // Lines from `lines` on become zeros. `anywhere`: an aligned address for copies of nothing.
  static __device__ __forceinline__ void load(uint32_t tile, const T* from, int64_t stride,
                                              int lines, int alignment, const void* anywhere) {
    const uint32_t to = tile + chunk_offset<Tile::kStepBytes>(line(), threadIdx.x % kChunks);
    const bool has_line = kLines % kApart == 0 || line() < kLines % kApart;
    if (alignment >= kChunkBytes) {
#pragma unroll
      for (int i = 0; i < kLines; i += kApart) {
        if (i + kApart > kLines && !has_line) break;
        const bool used = i + line() < lines;
        cp_async_16(to + i * Tile::kStepBytes, used ? from + i * stride : anywhere, used ? 16 : 0);
      }
      return;
    }
#pragma unroll 1
    for (int i = 0; i + line() < kLines; i += kApart) {
      const bool used = i + line() < lines;
      copy_chunk_narrow(to + i * Tile::kStepBytes,
                        used ? from + i * stride : static_cast<const T*>(anywhere), used ? 16 : 0,
                        alignment);
    }
  }
};

// Copies what has n or m contiguous, a row-major B's rows or those of a transposed A, one for each
// k and kWidth wide. A thread stays within one slice of the step, and copies one chunk, always the
// same, of every kApart-th of that slice's rows.
template <typename T, typename Tile, int kWidth>
struct RowLoader {
  static constexpr int kRowBytes = kWidth * sizeof(T), kChunks = kRowBytes / kChunkBytes;
  static constexpr int kGroup = Tile::kThreads / Tile::kSlices;  // threads that share a slice
  static constexpr int kRows = kSliceBytes / sizeof(T), kApart = kGroup / kChunks;
  static_assert(kGroup % kChunks == 0 && kRows % kApart == 0);

  static __device__ __forceinline__ int slice() { return threadIdx.x / kGroup; }
  static __device__ __forceinline__ int row() { return threadIdx.x % kGroup / kChunks; }
  static __device__ __forceinline__ int element() { return threadIdx.x % kChunks * kChunk<T>; }

  // `from`: the thread's chunk of its first row; `stride`: elements from one row to the next. The
  // first `bytes` of each chunk are copied, the rest becomes zeros.
  static __device__ __forceinline__ void load(uint32_t tile, const T* from, int64_t stride,
                                              int bytes, int alignment, const void* anywhere) {
    const uint32_t to =
        tile + chunk_offset<kRowBytes>(slice() * kRows + row(), threadIdx.x % kChunks);
    if (bytes == 0) {
      from = static_cast<const T*>(anywhere);
      stride = 0;
    }
    if (alignment >= kChunkBytes) {
#pragma unroll
      for (int i = 0; i < kRows; i += kApart) {
        const uint32_t row_i = (to ^ swizzle<kRowBytes>(i) << 4) + i * kRowBytes;
        cp_async_16(row_i, from + i * stride, bytes);
      }
      return;
    }
#pragma unroll 1
    for (int i = 0; i < kRows; i += kApart) {
      const uint32_t row_i = (to ^ swizzle<kRowBytes>(i) << 4) + i * kRowBytes;
      copy_chunk_narrow(row_i, from + i * stride, bytes, alignment);
    }
  }
};

}  // namespace sparse_autotune
