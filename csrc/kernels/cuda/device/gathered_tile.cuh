// Copies of a tile whose lines lie anywhere in a matrix, to shared memory, swizzled as Fragments
// expects them. Which line of the matrix each line of the tile is stands in a table in shared
// memory; -1: none, which becomes zeros, as does every term from `terms` on.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/cp_async.cuh"
#include "kernels/cuda/device/swizzle.cuh"
#include "kernels/cuda/device/tile_loader.cuh"

namespace sparse_autotune {

// A matrix: element (line, term) lies at line * ld + term or, where a term's lines lie side by
// side, at term * ld + line.
template <typename T>
struct Gathered {
  const T* data;
  int64_t ld;
  int alignment;  // of both, bytes

  __device__ __forceinline__ void copy(uint32_t to, int64_t element, int elements) const {
    const int bytes = max(elements, 0) * static_cast<int>(sizeof(T));
    const T* from = bytes > 0 ? data + element : data;
    copy_chunk(to, from, bytes, alignment);
  }
};

// Terms contiguous in the matrix and in the tile: lines of Tile::kStepBytes.
template <typename T, typename Tile, int kLines>
__device__ __forceinline__ void load_lines(uint32_t tile, const Gathered<T>& matrix,
                                           const int* table, int64_t first, int64_t terms) {
  constexpr int kChunks = Tile::kStepBytes / kChunkBytes, kApart = Tile::kThreads / kChunks;
  const int chunk = threadIdx.x % kChunks;
  const int64_t term = first + chunk * kChunk<T>;
  const auto some = static_cast<int>(min(terms - term, int64_t{kChunk<T>}));
#pragma unroll
  for (int i = 0; i < kLines; i += kApart) {
    const int line = i + threadIdx.x / kChunks;
    if (kLines % kApart != 0 && line >= kLines) break;
    const int source = table[line];
    matrix.copy(tile + chunk_offset<Tile::kStepBytes>(line, chunk), source * matrix.ld + term,
                source < 0 ? 0 : some);
  }
}

// Lines side by side in the matrix and in the tile: kLines wide, a row for each term. Lines that
// share a chunk are neighbours in the matrix too.
template <typename T, typename Tile, int kLines>
__device__ __forceinline__ void load_terms(uint32_t tile, const Gathered<T>& matrix,
                                           const int* table, int64_t first, int64_t terms) {
  constexpr int kRowBytes = kLines * sizeof(T), kChunks = kRowBytes / kChunkBytes;
  constexpr int kRows = Tile::kStepBytes / sizeof(T), kApart = Tile::kThreads / kChunks;
  static_assert(Tile::kThreads % kChunks == 0 && kRows % kApart == 0);
  const int chunk = threadIdx.x % kChunks, source = table[chunk * kChunk<T>];
#pragma unroll
  for (int i = 0; i < kRows; i += kApart) {
    const int row = i + threadIdx.x / kChunks;
    const int64_t term = first + row;
    matrix.copy(tile + chunk_offset<kRowBytes>(row, chunk), term * matrix.ld + source,
                source < 0 || term >= terms ? 0 : kChunk<T>);
  }
}

}  // namespace sparse_autotune
