// Tiles of rows of q, k, v or dout in shared memory, put together from pieces of 16 rows by
// cp.async, and what warps multiply of them with mma.sync: what the portable kernels share.
#pragma once

#include <cstdint>

#include "kernels/cuda/attention/tile_columns.cuh"
#include "kernels/cuda/device/cp_async.cuh"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/device/swizzle.cuh"

namespace sparse_autotune {

// A tile of kTileRows, copied by kThreadCount threads.
template <typename T, int kDim, int kTileRows, int kThreadCount>
struct RowTileSm80 {
  static constexpr int kPiece = 16, kPieces = kTileRows / kPiece;
  static constexpr int kRowBytes = kDim * 2, kBytes = kTileRows * kRowBytes;
  static constexpr int kChunks = kDim / 8, kAtOnce = kThreadCount / kChunks;  // rows
  static_assert(kPiece % kAtOnce == 0 || kAtOnce % kPiece == 0, "threads share out whole pieces");

  struct Pieces {
    ColumnPiece piece[kPieces];
  };

  static __device__ __forceinline__ Pieces pieces_of(const TileColumns<kPiece>& list, int tile,
                                                     int columns) {
    Pieces pieces;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int at = tile * kPieces + i;
      pieces.piece[i] = list.piece(at, list.entry(at), columns);
    }
    return pieces;
  }

  // Row `row` of `all` becomes line `to`; one past the end becomes zeros.
  static __device__ __forceinline__ void copy_row(const T* rows, int64_t stride, int row, int all,
                                                  uint32_t tile, int to) {
    const int chunk = threadIdx.x % kChunks;
    const bool there = row < all;
    cp_async_16(tile + chunk_offset<kRowBytes>(to, chunk),
                rows + (there ? row : 0) * stride + chunk * 8, there ? 16 : 0);
  }

  static __device__ __forceinline__ void copy(const T* rows, int64_t stride, const Pieces& pieces,
                                              int all, uint32_t tile) {
    const int first = threadIdx.x / kChunks;
#pragma unroll
    for (int i = 0; i < kTileRows; i += kAtOnce) {
      int column = pieces.piece[i / kPiece].column;
#pragma unroll
      for (int j = 1; j < kAtOnce / kPiece; ++j) {
        if (first / kPiece == j) column = pieces.piece[i / kPiece + j].column;
      }
      copy_row(rows, stride, column + (i + first) % kPiece, all, tile, i + first);
    }
  }

  // Neighbouring rows.
  static __device__ __forceinline__ void copy_all(const T* rows, int64_t stride, int row, int all,
                                                  uint32_t tile) {
#pragma unroll
    for (int i = threadIdx.x / kChunks; i < kTileRows; i += kAtOnce) {
      copy_row(rows, stride, row + i, all, tile, i);
    }
  }

  // A bit for each piece that the warp's block row has.
  static __device__ __forceinline__ unsigned present(const Pieces& pieces, bool merged,
                                                     int block_m) {
    if (!merged) return (1u << kPieces) - 1;
    const int own = static_cast<int>(threadIdx.x) / 32 * 16 / block_m;
    unsigned bits = 0;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) bits |= (pieces.piece[i].block_rows >> own & 1) << i;
    return bits;
  }

  // What this lane reads of 16 rows as fragments of A, for slice 0 of the head dimension.
  static __device__ __forceinline__ uint32_t a_offset(int row) {
    const int lane = threadIdx.x % 32;
    return chunk_offset<kRowBytes>(row + lane % 16, lane / 16);
  }

  // score += A's slice times the transposed tile, of the pieces that are present.
  static __device__ __forceinline__ void multiply_slice(float (&score)[kTileRows / 2],
                                                        const uint32_t (&a)[4], uint32_t tile,
                                                        int slice, unsigned present) {
    const int lane = threadIdx.x % 32;
    const uint32_t from =
        tile + (chunk_offset<kRowBytes>(lane / 16 * 8 + lane % 8, lane / 8 % 2) ^ slice * 32);
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      if ((present >> i & 1) == 0) continue;
      uint32_t b[4];
      ldmatrix(b, from + i * kPiece * kRowBytes);
      mma<T>(score + 8 * i, a, b);
      mma<T>(score + 8 * i + 4, a, b + 2);
    }
  }

  // sum += the warp's 16 rows of `factor`, as halves, times the tile.
  static __device__ __forceinline__ void multiply(float (&sum)[kDim / 2],
                                                  const uint32_t (&factor)[kTileRows / 4],
                                                  uint32_t tile, unsigned present) {
    const int lane = threadIdx.x % 32;
    const uint32_t from = tile + chunk_offset<kRowBytes>(lane % 16, lane / 16);
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      if ((present >> i & 1) == 0) continue;
      const auto& a = reinterpret_cast<const uint32_t(&)[4]>(factor[4 * i]);
#pragma unroll
      for (int j = 0; j < kDim / 16; ++j) {
        uint32_t b[4];
        ldmatrix_transposed(b, (from ^ j * 32) + i * kPiece * kRowBytes);
        mma<T>(sum + 8 * j, a, b);
        mma<T>(sum + 8 * j + 4, a, b + 2);
      }
    }
  }
};

}  // namespace sparse_autotune
