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

// kTerms: terms are contiguous in the matrix and in the tile, which has lines of Tile::kStepBytes.
// Otherwise lines lie side by side in both: the tile has a row for each term, kLines wide, and
// lines that share a chunk are neighbours in the matrix too.
template <typename T, typename Tile, int kLines, bool kTerms>
struct GatheredTile {
  static constexpr int kRowBytes = kTerms ? Tile::kStepBytes : kLines * sizeof(T);
  static constexpr int kRows = kTerms ? kLines : Tile::kStepBytes / sizeof(T);
  static constexpr int kChunks = kRowBytes / kChunkBytes, kApart = Tile::kThreads / kChunks;
  static_assert(kTerms || (Tile::kThreads % kChunks == 0 && kRows % kApart == 0),
                "threads share out whole rows");
  static_assert(!kTerms || kApart % 8 == 0, "all of a thread's lines must have the same swizzle");

  static __device__ __forceinline__ void load(uint32_t tile, const Gathered<T>& matrix,
                                              const int* table, int64_t first, int64_t terms) {
    const int chunk = threadIdx.x % kChunks;
    if constexpr (kTerms) {
      const int64_t term = first + chunk * kChunk<T>;
      const auto some = static_cast<int>(min(terms - term, int64_t{kChunk<T>}));
#pragma unroll 1
      for (int i = 0; i < kRows; i += kApart) {
        const int line = i + threadIdx.x / kChunks;
        if (kRows % kApart != 0 && line >= kRows) break;
        const int source = table[line];
        matrix.copy(tile + chunk_offset<kRowBytes>(line, chunk), source * matrix.ld + term,
                    source < 0 ? 0 : some);
      }
    } else {
      const int source = table[chunk * kChunk<T>];
#pragma unroll 1
      for (int i = 0; i < kRows; i += kApart) {
        const int row = i + threadIdx.x / kChunks;
        const int64_t term = first + row;
        matrix.copy(tile + chunk_offset<kRowBytes>(row, chunk), term * matrix.ld + source,
                    source < 0 || term >= terms ? 0 : kChunk<T>);
      }
    }
  }

  // For steps whose terms all exist and are aligned to 16 bytes: straight code, if `wanted`, for
  // the compiler to mix with what the tensor cores do. `ld_bytes`: matrix.ld in bytes. Lines that
  // are none stay as they are.
  static __device__ __forceinline__ void start(uint32_t tile, const T* data, uint32_t ld_bytes,
                                               const int* table, int64_t first, bool wanted) {
    const int chunk = threadIdx.x % kChunks, own = threadIdx.x / kChunks;
    if constexpr (kTerms) {
      const uint32_t to = tile + chunk_offset<kRowBytes>(own, chunk);
      const T* from = data + first + chunk * kChunk<T>;
#pragma unroll
      for (int i = 0; i < kRows; i += kApart) {
        const bool inside = kRows % kApart == 0 || i + own < kRows;
        const int source = inside ? table[i + own] : -1;
        cp_async_16_if(wanted && source >= 0, to + i * kRowBytes,
                       ahead(from, ld_bytes, static_cast<uint32_t>(source)));
      }
    } else {
      const int source = table[chunk * kChunk<T>];
      const uint32_t to = tile + chunk_offset<kRowBytes>(own, chunk);
      const T* from = ahead(data, ld_bytes, static_cast<uint32_t>(first) + own) + source;
#pragma unroll
      for (int i = 0; i < kRows; i += kApart) {
        cp_async_16_if(wanted && source >= 0, (to ^ swizzle<kRowBytes>(i) << 4) + i * kRowBytes,
                       ahead(from, ld_bytes, i));
      }
    }
  }
};

}  // namespace sparse_autotune
