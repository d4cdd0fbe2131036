// Copies of A's and B's tiles to shared memory, swizzled, shared out among a thread block.
//
// k comes in slices of 32 bytes (what one mma consumes) of two 16-byte chunks; a step is
// Tile::kSlices of them. Each thread belongs to one slice of the step, so it needs one address a
// step wherever the slices come from.
//
// start() is for whole chunks that are aligned to 16 bytes: straight code, for the compiler to mix
// with what the tensor cores do. load() takes anything, in a rolled loop.
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

// One multiplication, where the 64-bit stride would take several.
template <typename T>
__device__ __forceinline__ const T* ahead(const T* from, uint32_t stride_bytes, uint32_t lines) {
  return reinterpret_cast<const T*>(reinterpret_cast<const char*>(from) +
                                    static_cast<uint64_t>(stride_bytes) * lines);
}

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
  // Where the thread's first chunk goes.
  static __device__ __forceinline__ uint32_t offset() {
    return chunk_offset<Tile::kStepBytes>(line(), threadIdx.x % kChunks);
  }

  // `to`: the tile's address plus offset(). `from`: the thread's chunk of its first line. Lines
  // from `lines` on stay as they are.
  static __device__ __forceinline__ void start(uint32_t to, const T* from, uint32_t stride_bytes,
                                               int lines) {
#pragma unroll
    for (int i = 0; i < kLines; i += kApart) {
      cp_async_16_if(i + line() < lines, to + i * Tile::kStepBytes, ahead(from, stride_bytes, i));
    }
  }

  // `stride`: elements from one line to the next. Lines from `lines` on become zeros. `anywhere`:
  // an aligned address for copies of nothing.
  static __device__ __forceinline__ void load(uint32_t to, const T* from, int64_t stride, int lines,
                                              int alignment, const void* anywhere) {
#pragma unroll 1
    for (int i = 0; i + line() < kLines; i += kApart) {
      const bool used = i + line() < lines;
      copy_chunk(to + i * Tile::kStepBytes,
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
  static_assert(kGroup % kChunks == 0 && kRows % kApart == 0, "threads share out whole rows");

  static __device__ __forceinline__ int slice() { return threadIdx.x / kGroup; }
  static __device__ __forceinline__ int row() { return threadIdx.x % kGroup / kChunks; }
  static __device__ __forceinline__ int element() { return threadIdx.x % kChunks * kChunk<T>; }
  // Where the thread's first chunk goes.
  static __device__ __forceinline__ uint32_t offset() {
    return chunk_offset<kRowBytes>(slice() * kRows + row(), threadIdx.x % kChunks);
  }
  static __device__ __forceinline__ uint32_t chunk_of_row(uint32_t to, int i) {
    return (to ^ swizzle<kRowBytes>(i) << 4) + i * kRowBytes;
  }

  // `to`: the tile's address plus offset(). `from`: the thread's chunk of its first row.
  static __device__ __forceinline__ void start(uint32_t to, const T* from, uint32_t stride_bytes,
                                               bool wanted) {
#pragma unroll
    for (int i = 0; i < kRows; i += kApart) {
      cp_async_16_if(wanted, chunk_of_row(to, i), ahead(from, stride_bytes, i));
    }
  }

  // `stride`: elements from one row to the next. The first `bytes` of each chunk are copied, the
  // rest becomes zeros.
  static __device__ __forceinline__ void load(uint32_t to, const T* from, int64_t stride, int bytes,
                                              int alignment, const void* anywhere) {
    if (bytes == 0) {
      from = static_cast<const T*>(anywhere);
      stride = 0;
    }
#pragma unroll 1
    for (int i = 0; i < kRows; i += kApart) {
      copy_chunk(chunk_of_row(to, i), from + i * stride, bytes, alignment);
    }
  }
};

}  // namespace sparse_autotune
