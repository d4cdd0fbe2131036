// How a warp reads an fp64 step's A and B that TMA copied, and multiplies them.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/device/dmma.cuh"

namespace sparse_autotune {

// Where the lane reads a tile's first rows and its warp's first 16 columns. Tile::kUnitK k of
// either operand lie together, in swizzled lines of 128 bytes where they are two slices, in plain
// ones of 64 where they are one; or, of a transposed A and a row-major B, 16 rows or columns, a box
// of lines for each k. One slice of a transposed A comes in boxes of 8 rows, whose lines of 64
// bytes are swizzled.
template <typename Tile>
struct DmmaLanes {
  static constexpr int kSlices = Tile::kSlices, kBoxBytes = 16 * Tile::kUnitK * 8;
  int a, b;  // from where swizzling changes bits to find what lies beside: no register for each

  __device__ __forceinline__ DmmaLanes() {
    const int lane = threadIdx.x % 32, group = lane / 4, pair = lane % 4, warp = threadIdx.x / 32;
    const int line = line_of(group);
    const int along = kSlices == 2 ? line * 128 + ((pair ^ line) << 4) : lane * 16;
    if constexpr (!Tile::kTransposedA) {
      a = along;
    } else if constexpr (kSlices == 2) {
      a = pair * 256 + ((line / 2 ^ pair * 2) << 4) + line % 2 * 8;
    } else {
      static_assert(Tile::kGranule == 8, "a box has 8 rows");
      a = pair * 128 + ((group / 2 ^ pair) << 4) + group % 2 * 8;
    }
    b = Tile::kBytesA + warp * Tile::kWarpN * Tile::kUnitK * 8 +
        (Tile::kRowMajorB ? pair * 256 + ((group ^ pair * 2) << 4) : along);
  }

  // The warp's columns, as multiply_fp64 takes them.
  __device__ __forceinline__ void load_columns(
      const char* unit, double (&columns)[Tile::kTilesM][4 * kSlices]) const {
#pragma unroll
    for (int j = 0; j < kSlices; ++j) {
      const int own = Tile::kRowMajorB ? b + j * 1024 : b ^ j * 64;
      const int other = Tile::kRowMajorB ? (own ^ 16) + 128 : own + kBoxBytes / 2;
#pragma unroll
      for (int i = 0; i < Tile::kTilesM; ++i) {
        const char* from = unit + i * kBoxBytes;
        load_pairs<Tile::kRowMajorB>(from + own, from + other, columns[i] + 4 * j);
      }
    }
  }

  // The lane's of 8 rows: the `tile`th 8 from `first` on.
  __device__ __forceinline__ void load_rows(const char* first, int tile,
                                            double (&rows)[2 * kSlices]) const {
    first += tile / 2 * kBoxBytes;
    if constexpr (Tile::kTransposedA) {
      // The second 8 of 16 rows, and the second k, lie where swizzling has them. Kept, all four
      // places would take registers that the fullest tile does not have.
      int at = a;
      asm volatile("" : "+r"(at));
      const int own = at ^ tile % 2 * 64, other = kSlices == 2 ? (own ^ 16) + 128 : own + 64;
#pragma unroll
      for (int i = 0; i < kSlices; ++i) {
        rows[2 * i] = *reinterpret_cast<const double*>(first + own + i * 1024);
        rows[2 * i + 1] = *reinterpret_cast<const double*>(first + other + i * 1024);
      }
    } else {
      first += tile % 2 * (kBoxBytes / 2);
#pragma unroll
      for (int i = 0; i < kSlices; ++i) {
        const auto x = *reinterpret_cast<const double2*>(first + (a ^ i * 64));
        rows[2 * i] = x.x;
        rows[2 * i + 1] = x.y;
      }
    }
  }

  __device__ __forceinline__ void multiply(double (&sum)[Tile::kTilesN][Tile::kTilesM][4],
                                           const char* stage) const {
    double columns[Tile::kTilesM][4 * kSlices];
    load_columns(stage, columns);
    double next[2 * kSlices];
    load_rows(stage, 0, next);
#pragma unroll
    for (int tile = 0; tile < Tile::kTilesN; ++tile) {
      double now[2 * kSlices];
#pragma unroll
      for (int i = 0; i < 2 * kSlices; ++i) now[i] = next[i];
      if (tile + 1 < Tile::kTilesN) load_rows(stage, tile + 1, next);
#pragma unroll
      for (int i = 0; i < Tile::kTilesM; ++i) multiply_fp64(sum[tile][i], columns[i], now);
    }
  }
};

}  // namespace sparse_autotune
