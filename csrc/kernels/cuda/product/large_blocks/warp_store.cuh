// C's way out of warps that own 64 x 64 of its elements: bias, activation, rounding, shared memory
// of the warp's own. No warp waits for another, and C is written in whole lines of 128 bytes.
//
// The words of a column-major C, two rows of one column, are not those that a thread has, so its
// 8 x 8 matrices are transposed in registers.
#pragma once

#include <cstdint>

#include "kernels/activation.h"
#include "kernels/cuda/device/activate_sums.cuh"
#include "kernels/cuda/device/pack.cuh"
#include "kernels/cuda/device/transpose_word.cuh"
#include "variant.h"

namespace sparse_autotune {

constexpr int kWarpStoreBytes = 4096;  // shared memory of one warp, aligned to 16

// The first row and column of a thread block's tile of C, all of which exists.
struct TilePosition {
  int64_t row, column;
  unsigned batch;
};

// `sum` is laid out as Fragments::multiply leaves it. `staged`: kWarpStoreBytes for each warp.
// `args`: MmaArguments, C's lines aligned to 16 bytes.
template <typename T, typename Tile, typename Arguments>
__device__ __forceinline__ void store_warp(float (&sum)[128], char* staged, const Arguments& args,
                                           const TilePosition& tile) {
  static_assert(Tile::kWarpM == 64 && Tile::kWarpN == 64,
                "the lanes' places below are of such a tile");
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t row = tile.row + warp / Tile::kWarpsN * 64;
  const int64_t column = tile.column + warp % Tile::kWarpsN * 64;
  staged += warp * kWarpStoreBytes;
  // The pair that this thread has of rows 8 i and columns 8 j of the warp's.
  const auto at = [](int i, int j) { return ((i / 2 * 8 + j) * 2 + i % 2) * 2; };
  if (args.bias != nullptr) {
    const T* bias = static_cast<const T*>(args.bias) + row + lane / 4;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const auto x = static_cast<float>(bias[i * 8]);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        sum[at(i, j)] += x;
        sum[at(i, j) + 1] += x;
      }
    }
  }
  if (args.activation == Activation::kRelu) {
#pragma unroll
    for (float& x : sum) x = activate(x, Activation::kRelu);
  } else if (args.activation != Activation::kNone) {
    const auto own = static_cast<uint32_t>(__cvta_generic_to_shared(staged)) + lane * 4;
    activate_sums<128, kWarpStoreBytes / 128, 128>(sum, own, args.activation);
    __syncwarp();
  }

  // Half of the lines at a time, 32 of 8 chunks, which change places within their line.
  char* const to_shared = staged + lane / 4 * 128 + lane % 4 * 4;
  const auto put = [&](int line, int chunk, uint32_t word) {
    *reinterpret_cast<uint32_t*>(to_shared + line * 1024 + (chunk << 4 ^ lane / 4 << 4)) = word;
  };
  T* to = static_cast<T*>(args.c) + tile.batch * args.c_batch_stride + lane % 8 * 8;
  to += args.c_rows ? (row + lane / 8) * args.ldc + column : (column + lane / 8) * args.ldc + row;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (args.c_rows) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          const float* pair = sum + at(half * 4 + i, j);
          put(i, j, pack<T>(pair[0], pair[1]));
        }
      }
    } else {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const float* pair = sum + at(i, half * 4 + j);
          put(j, i, transpose_word(pack<T>(pair[0], pair[1])));
        }
      }
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 32; i += 4) {
      const int line = i + lane / 8;
      const char* from = staged + line * 128 + ((lane % 8 ^ line % 8) << 4);
      *reinterpret_cast<uint4*>(to + (half * 32 + i) * args.ldc) =
          *reinterpret_cast<const uint4*>(from);
    }
    __syncwarp();
  }
}

}  // namespace sparse_autotune
