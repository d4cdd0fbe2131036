// The end of a thread block whose groups share out a block row's steps, in two forms: groups of
// warps leave their sums of the same tile of C in shared memory; warpgroups, which have them in
// registers as wgmma leaves them (wgmma.cuh), exchange parts of them, and each finishes a part of
// the columns.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/activate_sums.cuh"
#include "kernels/cuda/device/transpose_word.cuh"
#include "operators/product/product.h"

namespace sparse_autotune {

// A warp's fragments of sums to shared memory, column by column, kPitch floats apart: row(i, high)
// of a fragment's two rows, column(j, odd) of its two columns.
template <int kPitch, int kRowTiles, int kColumnTiles, typename Row, typename Column>
__device__ __forceinline__ void leave_sums(const float (&sum)[kRowTiles][kColumnTiles][4],
                                           float* sums, const Row& row, const Column& column) {
#pragma unroll
  for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
    for (int j = 0; j < kColumnTiles; ++j) {
#pragma unroll
      for (int s = 0; s < 4; ++s) sums[column(j, s % 2) * kPitch + row(i, s / 2)] = sum[i][j][s];
    }
  }
}

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

// What another warpgroup finishes a thread hands to the thread in its place there, 16 bytes at a
// time through shared memory: neither bank conflicts nor a second pass over the tile.

// Of a warpgroup's share: `sum`'s floats, what it receives. `kSum` floats of `kGroups` warpgroups.
template <int kSum, int kGroups>
struct ExchangedShare {
  static constexpr int kFloats = kSum / kGroups, kQuads = kFloats / 4, kThreads = 128;
  static constexpr int kBytes = kGroups * (kGroups - 1) * kQuads * kThreads * 16;
  static_assert(kFloats % 4 == 0, "16 bytes are exchanged at a time");
};

// All threads call it. `own` becomes the sum over the warpgroups, in their order behind its own, of
// the group's share. `received` is shared memory of ExchangedShare::kBytes that nothing else uses.
template <int kSum, int kGroups>
__device__ __forceinline__ void exchange_sums(
    const float (&sum)[kSum], float4* received, int group,
    float (&own)[ExchangedShare<kSum, kGroups>::kFloats]) {
  using Share = ExchangedShare<kSum, kGroups>;
  const int thread = static_cast<int>(threadIdx.x) % Share::kThreads;
  const auto place = [&](int to, int slot, int quad) -> float4& {
    return received[((to * (kGroups - 1) + slot) * Share::kQuads + quad) * Share::kThreads +
                    thread];
  };
#pragma unroll
  for (int to = 0; to < kGroups; ++to) {
    const float* part = sum + to * Share::kFloats;
    if (to == group) {
#pragma unroll
      for (int i = 0; i < Share::kFloats; ++i) own[i] = part[i];
    } else {
      const int slot = group < to ? group : group - 1;
#pragma unroll
      for (int i = 0; i < Share::kQuads; ++i) {
        place(to, slot, i) =
            make_float4(part[4 * i], part[4 * i + 1], part[4 * i + 2], part[4 * i + 3]);
      }
    }
  }
  __syncthreads();
#pragma unroll
  for (int slot = 0; slot < kGroups - 1; ++slot) {
#pragma unroll
    for (int i = 0; i < Share::kQuads; ++i) {
      const float4 other = place(group, slot, i);
      own[4 * i] += other.x;
      own[4 * i + 1] += other.y;
      own[4 * i + 2] += other.z;
      own[4 * i + 3] += other.w;
    }
  }
}

// Bias, activation, C: 16 rows of it a warp from `row` on, kFloats * 2 columns from `column` on.
template <typename T, int kFloats, typename Arguments>
__device__ __forceinline__ void finish_exchanged(const Arguments& args, float (&own)[kFloats],
                                                 int64_t row, int column, int batch) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const bool odd = t % 2 != 0;
  T* const c = static_cast<T*>(args.c) + batch * args.c_batch_stride + row * args.c_row;
  // Branches apart from the stores, which would wait for each other behind them.
  if (args.bias != nullptr) {
#pragma unroll
    for (int high = 0; high < 2; ++high) {
      const auto x = static_cast<float>(static_cast<const T*>(args.bias)[row + g + 8 * high]);
#pragma unroll
      for (int i = 0; i < kFloats / 4; ++i) {
        own[4 * i + 2 * high] += x;
        own[4 * i + 2 * high + 1] += x;
      }
    }
  }
  if (args.activation != Activation::kNone) {
#pragma unroll
    for (int i = 0; i < kFloats; ++i) own[i] = activate_apart(own[i], args.activation);
  }
  uint32_t pairs[kFloats / 4][2];  // two columns of row g, then of 8 + g
#pragma unroll
  for (int i = 0; i < kFloats / 2; ++i) {
    alignas(4) const T two[2] = {static_cast<T>(own[2 * i]), static_cast<T>(own[2 * i + 1])};
    pairs[i / 2][i % 2] = *reinterpret_cast<const uint32_t*>(two);
  }
  if (args.stores_quads) {
    // Two rows of column g, then of 8 rows on; neighbours exchange a pair, so that each has four
    // rows that lie together.
#pragma unroll
    for (int i = 0; i < kFloats / 4; ++i) {
      const uint32_t low = transpose_word(pairs[i][0]), high = transpose_word(pairs[i][1]);
      const uint32_t other = __shfl_xor_sync(~0u, odd ? low : high, 1);
      if (column + i * 8 + g < args.n) {
        *reinterpret_cast<uint2*>(c + (column + i * 8 + g) * args.c_column + 2 * t +
                                  (odd ? 6 : 0)) =
            odd ? make_uint2(other, high) : make_uint2(low, other);
      }
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kFloats / 2; ++i) {
    const int first = column + i / 2 * 8 + 2 * t;
    T* const to = c + (g + i % 2 * 8) * args.c_row + first * args.c_column;
    const T* const two = reinterpret_cast<const T*>(&pairs[i / 2][i % 2]);
    if (args.stores_pairs && first + 1 < args.n) {
      *reinterpret_cast<uint32_t*>(to) = pairs[i / 2][i % 2];
    } else {
      if (first < args.n) to[0] = two[0];
      if (first + 1 < args.n) to[args.c_column] = two[1];
    }
  }
}

}  // namespace sparse_autotune
