// From the sums of an fp64 tile to C: bias, activation, stores straight from registers.
//
// Where B is row-major a thread's two columns are neighbours and 8 threads write 128 bytes of a row
// of C; else its two rows are, and 4 threads write 64 bytes of a column, or twice 32.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/activation.h"
#include "kernels/cuda/device/mbarrier.cuh"
#include "kernels/cuda/device/named_barrier.cuh"
#include "kernels/cuda/device/tma.cuh"
#include "kernels/cuda/product/fp64/dmma_part.cuh"
#include "operators/product/product.h"

namespace sparse_autotune {

// Applies a costly activation. A rolled loop cannot index registers, and unrolled it would be
// hundreds of copies of erf and tanh: some values at a time go through the thread's own words of
// `shared`.
template <typename Tile>
__device__ __forceinline__ void activate_fp64(double* all, char* shared, Activation activation) {
  constexpr int kAtOnce = Tile::kThreads > 128 ? 8 : 16;
  double* const own = reinterpret_cast<double*>(shared) + threadIdx.x % Tile::kThreads;
#pragma unroll
  for (int from = 0; from < Tile::kSums; from += kAtOnce) {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) own[i * Tile::kThreads] = all[from + i];
#pragma unroll 1
    for (int i = 0; i < kAtOnce * Tile::kThreads; i += Tile::kThreads) {
      own[i] = activate(own[i], activation);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) all[from + i] = own[i * Tile::kThreads];
  }
}

// A thread has two rows of each 8, kNextRow apart, and two columns of each 16: neighbours where B
// is row-major, else 8 apart. `rows`: from its first row on, of those that C has.
template <int kNextRow, int kTilesN, int kTilesM>
__device__ __forceinline__ void add_fp64_bias(double (&sum)[kTilesN][kTilesM][4],
                                              const double* bias, int rows) {
#pragma unroll
  for (int i = 0; i < kTilesN; ++i) {
    if (i * 8 >= rows) break;
    const double x = bias[i * 8], y = bias[i * 8 + kNextRow];
#pragma unroll
    for (int j = 0; j < kTilesM; ++j) {
      sum[i][j][0] += x;
      sum[i][j][1] += y;
      sum[i][j][2] += x;
      sum[i][j][3] += y;
    }
  }
}

// Where a tile's sums go.
struct Fp64Place {
  double* c;           // its first element
  const double* bias;  // of its first row; null: none
  int64_t ldc;
  int rows, columns;
  Activation activation;
  bool c_rows, pairs;  // pairs: aligned to 16 bytes
};

// The thread's sums; `at`: C from its first element on, and what there is of it.
template <bool kRowMajorB, int kNextRow, int kTilesN, int kTilesM>
__device__ __forceinline__ void store_fp64(const double (&sum)[kTilesN][kTilesM][4],
                                           const Fp64Place& at) {
  constexpr int kOther = kRowMajorB ? 1 : 8;
  const int64_t to_row = at.c_rows ? at.ldc : 1, to_column = at.c_rows ? 1 : at.ldc;
  const auto store = [&](double* to, double x, double y, int64_t apart, bool both) {
    if (apart == 1 && both && at.pairs) {
      *reinterpret_cast<double2*>(to) = make_double2(x, y);
    } else {
      to[0] = x;
      if (both) to[apart] = y;
    }
  };
#pragma unroll
  for (int i = 0; i < kTilesN; ++i) {
    if (i * 8 >= at.rows) break;
#pragma unroll
    for (int j = 0; j < kTilesM; ++j) {
      if (j * 16 >= at.columns) continue;
      double* to = at.c + i * 8 * to_row + j * 16 * to_column;
      const double(&x)[4] = sum[i][j];
      const bool both = j * 16 + kOther < at.columns;
      if (kRowMajorB && at.c_rows) {
        store(to, x[0], x[2], 1, both);
        store(to + kNextRow * to_row, x[1], x[3], 1, both);
      } else {
        store(to, x[0], x[1], kNextRow * to_row, true);
        if (both) store(to + kOther * to_column, x[2], x[3], kNextRow * to_row, true);
      }
    }
  }
}

// Adds bias, applies the activation and writes the tile. All threads are done with `shared`.
template <typename Tile>
__device__ __forceinline__ void write_fp64_sums(double (&sum)[Tile::kTilesN][Tile::kTilesM][4],
                                                char* shared, const Fp64Place& place) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % Tile::kWarps;
  const int row = Tile::kSlices == 2 ? lane % 4 : lane % 4 * 2;
  constexpr int kNextRow = Tile::kSlices == 2 ? 4 : 1;
  if (place.bias != nullptr) add_fp64_bias<kNextRow>(sum, place.bias + row, place.rows);
  double* const all = &sum[0][0][0];
  if (place.activation == Activation::kRelu) {
#pragma unroll
    for (int i = 0; i < Tile::kSums; ++i) all[i] = activate(all[i], Activation::kRelu);
  } else if (place.activation != Activation::kNone) {
    activate_fp64<Tile>(all, shared, place.activation);
  }

  // As multiply_granules' b has the columns.
  const int group = lane / 4;
  const int in_16 = Tile::kRowMajorB ? group * 2 : Tile::kSlices == 2 ? line_of(group) : group;
  const int column = warp * Tile::kWarpN + in_16;
  const int64_t to_row = place.c_rows ? place.ldc : 1, to_column = place.c_rows ? 1 : place.ldc;
  Fp64Place own = place;
  own.c += row * to_row + column * to_column;
  own.columns -= column;
  store_fp64<Tile::kRowMajorB, kNextRow>(sum, own);
}

// The same behind a tile's last step in a ring, for the next tile. `scratch`: its stage, which was
// not handed back, serves a costly activation once all are done with it.
template <typename Tile, typename Ring>
__device__ __forceinline__ void finish_fp64_step(double (&sum)[Tile::kTilesN][Tile::kTilesM][4],
                                                 const Ring& ring, uint32_t stage,
                                                 const Fp64Place& place, bool scratch) {
  if (scratch) barrier_sync<Tile::kThreads>(1);
  write_fp64_sums<Tile>(sum, ring.memory + stage * Tile::kStageBytes, place);
  if (scratch) {
    tma_store_fence();
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(ring.empty(stage));
  }
#pragma unroll
  for (int i = 0; i < Tile::kSums; ++i) (&sum[0][0][0])[i] = 0;
}

__device__ __forceinline__ Fp64Place place_of(const DmmaArguments& args, const DmmaPart& part) {
  const int64_t first =
      args.c_rows ? part.row0 * args.ldc + part.n0 : part.row0 + part.n0 * args.ldc;
  const double* bias = static_cast<const double*>(args.bias);
  return {static_cast<double*>(args.c) + part.batch * args.c_batch_stride + first,
          bias == nullptr ? nullptr : bias + part.row0,
          args.ldc,
          part.rows,
          part.columns,
          args.activation,
          args.c_rows,
          args.pairs};
}

}  // namespace sparse_autotune
