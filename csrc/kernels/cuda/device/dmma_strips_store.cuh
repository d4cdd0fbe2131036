// From the sums of a warp of dmma_strips_sm90 to C: bias, activation, stores straight from
// registers.
#pragma once

#include <cstdint>

#include "kernels/activation.h"
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

// Where B is row-major a thread's two columns are neighbours, else 8 apart; its two rows are
// neighbours. `strip`: the warp's first.
template <typename Tile>
__device__ __forceinline__ void store_strips(double (&sum)[Tile::kOwn][Tile::kTilesM][4],
                                             const StripsArguments& args, const TilePlace& place,
                                             int strip) {
  const int lane = threadIdx.x % 32, group = lane / 4;
  const int row0 = strip * Tile::kRows + lane % 4 * 2;
  double* const all = &sum[0][0][0];
  if (args.bias != nullptr) {
#pragma unroll
    for (int i = 0; i < Tile::kOwn; ++i) {
      const int row = row0 + i * 8;
      if (row >= args.m) continue;
      const double* bias = static_cast<const double*>(args.bias) + row;
      const double x = bias[0], y = bias[1];
#pragma unroll
      for (int j = 0; j < Tile::kTilesM; ++j) {
        sum[i][j][0] += x;
        sum[i][j][1] += y;
        sum[i][j][2] += x;
        sum[i][j][3] += y;
      }
    }
  }
  constexpr int kSums = Tile::kOwn * Tile::kTilesM * 4;
  if (args.activation == Activation::kRelu) {
#pragma unroll
    for (int i = 0; i < kSums; ++i) all[i] = activate(all[i], Activation::kRelu);
  } else if (args.activation != Activation::kNone) {
    activate_passing<kSums>(all, args.activation);
  }

  const int64_t n0 = int64_t{place.column} * Tile::kN;
  const auto columns = static_cast<int>(min(args.n - n0, int64_t{Tile::kN}));
  const int column = Tile::kRowMajorB ? group * 2 : line_of(group);
  constexpr int kOther = Tile::kRowMajorB ? 1 : 8;
  const int64_t to_row = args.c_rows ? args.ldc : 1, to_column = args.c_rows ? 1 : args.ldc;
  double* const c = static_cast<double*>(args.c) + place.batch * args.c_batch_stride +
                    row0 * to_row + (n0 + column) * to_column;
  const auto store = [&](double* to, double x, double y, int64_t apart, bool both) {
    if (apart == 1 && both && args.pairs) {
      *reinterpret_cast<double2*>(to) = make_double2(x, y);
    } else {
      to[0] = x;
      if (both) to[apart] = y;
    }
  };
#pragma unroll
  for (int i = 0; i < Tile::kOwn; ++i) {
    if (row0 + i * 8 >= args.m) break;
#pragma unroll
    for (int j = 0; j < Tile::kTilesM; ++j) {
      const int at = column + j * 16;
      if (at >= columns) continue;
      double* to = c + i * 8 * to_row + j * 16 * to_column;
      const double(&x)[4] = sum[i][j];
      const bool both = at + kOther < columns;
      if (Tile::kRowMajorB && args.c_rows) {
        store(to, x[0], x[2], 1, both);
        store(to + to_row, x[1], x[3], 1, both);
      } else {
        store(to, x[0], x[1], to_row, true);
        if (both) store(to + kOther * to_column, x[2], x[3], to_row, true);
      }
    }
  }
}

}  // namespace sparse_autotune
