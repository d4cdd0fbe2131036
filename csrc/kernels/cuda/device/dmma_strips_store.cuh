// From the sums of a warp of dmma_strips_sm90 to C: bias, activation, stores straight from
// registers.
#pragma once

#include <cstdint>

#include "kernels/activation.h"
#include "kernels/cuda/device/dmma_store.cuh"
#include "kernels/cuda/device/dmma_strips.cuh"
#include "variant.h"

namespace sparse_autotune {

// Costly activations, in a rolled loop, which cannot index registers: the sums move past it.
template <int kSums>
__device__ __forceinline__ void activate_passing(double* all, Activation activation) {
#pragma unroll 1
  for (int turn = 0; turn < kSums; ++turn) {
    const double done = activate(all[0], activation);
#pragma unroll
    for (int i = 0; i < kSums - 1; ++i) all[i] = all[i + 1];
    all[kSums - 1] = done;
  }
}

// `strip`: the warp's first.
template <typename Tile>
__device__ __forceinline__ void store_strips(double (&sum)[Tile::kOwn][Tile::kTilesM][4],
                                             const StripsArguments& args, const TilePlace& place,
                                             int strip) {
  const int lane = threadIdx.x % 32, group = lane / 4;
  const int first = strip * Tile::kRows, row = lane % 4 * 2;
  const int64_t n0 = int64_t{place.column} * Tile::kN;
  const int64_t to_row = args.c_rows ? args.ldc : 1, to_column = args.c_rows ? 1 : args.ldc;
  const double* bias = static_cast<const double*>(args.bias);
  const Fp64Place to{static_cast<double*>(args.c) + place.batch * args.c_batch_stride +
                         first * to_row + n0 * to_column,
                     bias == nullptr ? nullptr : bias + first,
                     args.ldc,
                     args.m - first,
                     static_cast<int>(min(args.n - n0, int64_t{Tile::kN})),
                     args.activation,
                     args.c_rows,
                     args.pairs};
  if (to.bias != nullptr) add_fp64_bias<1>(sum, to.bias + row, to.rows);
  double* const all = &sum[0][0][0];
  constexpr int kSums = Tile::kOwn * Tile::kTilesM * 4;
  if (args.activation == Activation::kRelu) {
#pragma unroll
    for (int i = 0; i < kSums; ++i) all[i] = activate(all[i], Activation::kRelu);
  } else if (args.activation != Activation::kNone) {
    activate_passing<kSums>(all, args.activation);
  }
  const int column = Tile::kRowMajorB ? group * 2 : line_of(group);
  store_fp64<Tile::kRowMajorB, 1>(sum, to, row, column);
}

}  // namespace sparse_autotune
