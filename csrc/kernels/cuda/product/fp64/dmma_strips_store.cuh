// From the sums of a warp of dmma_strips_sm90 to C: bias, activation, stores straight from
// registers.
#pragma once

#include <cstdint>

#include "kernels/activation.h"
#include "kernels/cuda/device/activate_sums.cuh"
#include "kernels/cuda/product/fp64/dmma_store.cuh"
#include "kernels/cuda/product/fp64/dmma_strips.cuh"
#include "variant.h"

namespace sparse_autotune {

// `strip`: the warp's first.
template <typename Tile>
__device__ __forceinline__ void store_strips(double (&sum)[Tile::kOwn][Tile::kTilesM][4],
                                             const StripsArguments& args, const TilePlace& place,
                                             int strip) {
  const int lane = threadIdx.x % 32, group = lane / 4;
  const int row0 = strip * Tile::kRows + lane % 4 * 2, rows = args.m - row0;
  if (args.bias != nullptr) {
    add_fp64_bias<1>(sum, static_cast<const double*>(args.bias) + row0, rows);
  }
  double* const all = &sum[0][0][0];
  constexpr int kSums = Tile::kOwn * Tile::kTilesM * 4;
  if (args.activation == Activation::kRelu) {
#pragma unroll
    for (int i = 0; i < kSums; ++i) all[i] = activate(all[i], Activation::kRelu);
  } else if (args.activation != Activation::kNone) {
    activate_passing<kSums, 1>(all, args.activation);
  }

  const int64_t n0 = int64_t{place.column} * Tile::kN;
  const auto columns = static_cast<int>(min(args.n - n0, int64_t{Tile::kN}));
  const int column = Tile::kRowMajorB ? group * 2 : line_of(group);
  const int64_t to_row = args.c_rows ? args.ldc : 1, to_column = args.c_rows ? 1 : args.ldc;
  double* const c = static_cast<double*>(args.c) + place.batch * args.c_batch_stride +
                    row0 * to_row + (n0 + column) * to_column;
  store_fp64<Tile::kRowMajorB, 1>(sum,
                                  {c, args.ldc, rows, columns - column, args.c_rows, args.pairs});
}

}  // namespace sparse_autotune
