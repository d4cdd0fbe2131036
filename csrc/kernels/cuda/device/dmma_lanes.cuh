// How a warp reads an fp64 step of 16 k that TMA swizzled, and multiplies it.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/device/dmma.cuh"

namespace sparse_autotune {

// Where the lane reads a tile's first rows and its warp's first 16 columns. Of either operand 16 k
// lie together, in lines of 128 bytes; or, of a transposed A and a row-major B, 16 rows or columns,
// a box of 16 lines for each.
template <typename Tile>
struct DmmaLanes {
  int a, a_next, a_odd;  // from there to the second slice, or k; to the second 8 of 16 rows
  int b, b_next, b_slice;

  __device__ __forceinline__ DmmaLanes() {
    const int lane = threadIdx.x % 32, group = lane / 4, warp = threadIdx.x / 32;
    const int line = line_of(group), along = line * 128 + ((lane % 4 ^ line) << 4);
    const int second = (along ^ 64) - along;
    if constexpr (Tile::kTransposedA) {
      a = lane % 4 * 256 + ((line / 2 ^ lane % 4 * 2) << 4) + line % 2 * 8;
      a_next = (a ^ 16) - a + 128;
      a_odd = (a ^ 64) - a;
    } else {
      a = along;
      a_next = second;
      a_odd = 1024;
    }
    const int turned = lane % 4 * 256 + ((group ^ lane % 4 * 2) << 4);
    b = Tile::kBytesA + warp * Tile::kWarpN * 128 + (Tile::kRowMajorB ? turned : along);
    b_next = Tile::kRowMajorB ? (turned ^ 16) - turned + 128 : 1024;
    b_slice = Tile::kRowMajorB ? 1024 : second;
  }

  __device__ __forceinline__ void multiply(double (&sum)[Tile::kTilesN][Tile::kTilesM][4],
                                           const char* stage) const {
    double columns[Tile::kTilesM][8];
#pragma unroll
    for (int i = 0; i < Tile::kTilesM; ++i) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const char* from = stage + b + i * 2048 + j * b_slice;
        load_pairs<Tile::kRowMajorB>(from, from + b_next, columns[i] + 4 * j);
      }
    }
    double next[4];
    load_rows(stage, 0, next);
#pragma unroll
    for (int tile = 0; tile < Tile::kTilesN; ++tile) {
      double now[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) now[i] = next[i];
      if (tile + 1 < Tile::kTilesN) load_rows(stage, tile + 1, next);
#pragma unroll
      for (int i = 0; i < Tile::kTilesM; ++i) multiply_fp64(sum[tile][i], columns[i], now);
    }
  }

 private:
  __device__ __forceinline__ void load_rows(const char* stage, int tile, double (&rows)[4]) const {
    const char* from = stage + a + tile / 2 * 2048 + (tile % 2 != 0 ? a_odd : 0);
    if constexpr (Tile::kTransposedA) {
      rows[0] = *reinterpret_cast<const double*>(from);
      rows[1] = *reinterpret_cast<const double*>(from + a_next);
      rows[2] = *reinterpret_cast<const double*>(from + 1024);
      rows[3] = *reinterpret_cast<const double*>(from + 1024 + a_next);
    } else {
      const auto x = *reinterpret_cast<const double2*>(from);
      const auto y = *reinterpret_cast<const double2*>(from + a_next);
      rows[0] = x.x;
      rows[1] = x.y;
      rows[2] = y.x;
      rows[3] = y.y;
    }
  }
};

}  // namespace sparse_autotune
