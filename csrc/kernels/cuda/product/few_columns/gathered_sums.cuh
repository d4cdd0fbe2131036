// The end of a thread block whose groups of warps share out a block row's stored blocks: each has
// left its sums of the same tile of C in shared memory.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/activate_sums.cuh"
#include "operators/product/product.h"

namespace sparse_autotune {

// Adds up the groups' sums in their order and finishes them: bias, activation, C. The tile is
// Tile::kRows x Tile::kWidth; a group's sums stand column by column, Tile::kPitch floats apart, and
// Tile::kSumBytes behind those of the group before. A thread takes four rows of a column at a time.
template <typename T, typename Tile, typename Arguments>
__device__ __forceinline__ void finish_gathered(const Arguments& args, const float* sums,
                                                int64_t row, int n0, int batch) {
  constexpr int kQuads = Tile::kRows / 4;
  const bool by_rows = args.c_column == 1;  // neighbouring threads write neighbours in C
  T* c = static_cast<T*>(args.c) + batch * args.c_batch_stride;
#pragma unroll 1
  for (int unit = threadIdx.x; unit < kQuads * Tile::kWidth; unit += Tile::kThreads) {
    const int quad = by_rows ? unit / Tile::kWidth : unit % kQuads;
    const int column = by_rows ? unit % Tile::kWidth : unit / kQuads;
    if (n0 + column >= args.n) continue;
    float x[4] = {};
#pragma unroll
    for (int group = 0; group < Tile::kGroups; ++group) {
      const float4 part = *reinterpret_cast<const float4*>(sums + group * (Tile::kSumBytes / 4) +
                                                           column * Tile::kPitch + quad * 4);
      x[0] += part.x;
      x[1] += part.y;
      x[2] += part.z;
      x[3] += part.w;
    }
    const int64_t m = row + quad * 4;
    T* to = c + m * args.c_row + (n0 + column) * args.c_column;
    alignas(8) T done[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (args.bias != nullptr) x[i] += static_cast<float>(static_cast<const T*>(args.bias)[m + i]);
      if (args.activation != Activation::kNone) x[i] = activate_apart(x[i], args.activation);
      done[i] = static_cast<T>(x[i]);
    }
    if (args.stores_quads) {
      *reinterpret_cast<uint2*>(to) = *reinterpret_cast<const uint2*>(done);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) to[i * args.c_row] = done[i];
    }
  }
}

}  // namespace sparse_autotune
