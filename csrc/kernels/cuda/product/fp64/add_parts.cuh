// The sums of dmma_flat_sm90's rows that borders cut: of each row's parts, in order, and C.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/activation.h"
#include "kernels/cuda/device/launch_overlap.cuh"
#include "kernels/cuda/product/fp64/dmma_flat.cuh"

namespace sparse_autotune {

constexpr int kAddThreads = 256;

// What the second kernel is told besides.
struct AddPartsArguments {
  DmmaFlatArguments rest;
  int tile_rows, tile_columns;
};

// The parts of a tile of C of a row that borders cut. Elements come in pairs, which lie together
// there.
struct CutTile {
  const AddPartsArguments& all;
  const DmmaFlatArguments& args;
  const FlatTilePlace& tile;
  const int4& cut;
  const double* const sums;  // of the tile in the first part
  const int64_t part;        // from one to the next
  const int borders, row0;
  const int64_t n0;
  const int line, end, limit;  // of the tile; pairs of this thread block; elements of a line in C

  // A row's parts: the second of the share before its first border, then the first of each.
  __device__ __forceinline__ double2 load(int i, int pair) const {
    const int64_t number_of = i == 0 ? 2 * cut.y - 1 : 2 * (cut.y + i - 1);
    return __ldcg(reinterpret_cast<const double2*>(sums + number_of * part) + pair);
  }
  // Where in the tile a pair lies, and whether C has it.
  __device__ __forceinline__ int across(int pair) const { return pair / (line / 2); }
  __device__ __forceinline__ int along(int pair) const { return pair % (line / 2) * 2; }
  __device__ __forceinline__ bool is_there(int pair) const {
    return pair < end && along(pair) < limit;
  }
  static __device__ __forceinline__ void add(double2& sum, double2 x) {
    sum.x += x.x;
    sum.y += x.y;
  }
  __device__ __forceinline__ void finish(int pair, double2 sum) const {
    const int row = args.c_rows ? across(pair) : along(pair);
    const int column = args.c_rows ? along(pair) : across(pair);
    if (args.bias != nullptr) {
      const double* const bias = static_cast<const double*>(args.bias) + row0 + row;
      sum.x += bias[0];
      sum.y += bias[args.c_rows ? 0 : 1];
    }
    sum.x = activate(sum.x, args.activation);
    sum.y = activate(sum.y, args.activation);
    double* const c = static_cast<double*>(args.c) + tile.batch * args.c_batch_stride +
                      (args.c_rows ? (row0 + row) * args.ldc + n0 + column
                                   : row0 + row + (n0 + column) * args.ldc);
    const bool both = along(pair) + 1 < limit;
    if (args.pairs && both) {
      *reinterpret_cast<double2*>(c) = sum;
    } else {
      c[0] = sum.x;
      if (both) c[1] = sum.y;
    }
  }

  static constexpr int kAtOnce = 4;  // loads of a thread
  // Every `width`th pair from `pair` on, each by one thread.
  __device__ __forceinline__ void finish_pairs(int pair0, int width) const {
    for (int first = pair0; first < end; first += kAtOnce * width) {
      double2 sum[kAtOnce] = {};
#pragma unroll 2
      for (int i = 0; i <= borders; ++i) {
        double2 some[kAtOnce];
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
          const int pair = first + j * width;
          some[j] = is_there(pair) ? load(i, pair) : make_double2(0, 0);
        }
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) add(sum[j], some[j]);
      }
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        const int pair = first + j * width;
        if (is_there(pair)) finish(pair, sum[j]);
      }
    }
  }
};

// A thread block for each border and tile of C; those of a row's borders share out its elements,
// two to a thread, or to several where there are more threads than that.
static __global__ void __launch_bounds__(kAddThreads)
    add_parts_kernel(const __grid_constant__ AddPartsArguments all) {
  const DmmaFlatArguments& args = all.rest;
  const unsigned tiles = gridDim.x / (args.shares - 1);
  const unsigned border = blockIdx.x / tiles + 1, number = blockIdx.x % tiles;
  const FlatTilePlace tile = flat_tile(args, number);
  follow_launch_before();  // which multiplies
  const int4 cut = __ldcg(reinterpret_cast<const int4*>(args.cuts + border));
  if (cut.x < 0) return;
  const int borders = cut.z - cut.y + 1, own = static_cast<int>(border) - cut.y;
  const int row0 = cut.x * args.block_m + tile.strip * args.strip_rows;
  const int64_t n0 = int64_t{tile.column} * all.tile_columns;
  const int rows = min(args.strip_rows, args.block_m - tile.strip * args.strip_rows);
  const int columns = static_cast<int>(min(args.n - n0, static_cast<int64_t>(all.tile_columns)));
  const int line = args.c_rows ? all.tile_columns : all.tile_rows;  // of the parts
  const int pairs = (args.c_rows ? rows : columns) * (line / 2);
  const int begin = static_cast<int>(int64_t{pairs} * own / borders);
  const int end = static_cast<int>(int64_t{pairs} * (own + 1) / borders);
  const int limit = args.c_rows ? columns : rows;
  int width = kAddThreads;  // threads for different pairs
  while (width / 2 >= end - begin && width > 1) width /= 2;
  const int item = static_cast<int>(threadIdx.x) % width;
  const int lane = static_cast<int>(threadIdx.x) / width, lanes = kAddThreads / width;
  const int64_t part = int64_t{tiles} * all.tile_rows * all.tile_columns;
  const double* const sums = args.sums + int64_t{number} * all.tile_rows * all.tile_columns;
  __shared__ double2 shares[kAddThreads];

  const CutTile cut_tile{all, args, tile, cut, sums, part, borders, row0, n0, line, end, limit};
  if (lanes == 1) {
    cut_tile.finish_pairs(begin + item, width);
    return;
  }
  // There is one pair for a thread at most, of whose parts it takes every `lanes`th.
  const int pair = begin + item;
  const bool is_there = cut_tile.is_there(pair);
  double2 sum = make_double2(0, 0);
#pragma unroll 4
  for (int i = lane; is_there && i <= borders; i += lanes)
    CutTile::add(sum, cut_tile.load(i, pair));
  shares[threadIdx.x] = sum;
  __syncthreads();
  if (lane != 0 || !is_there) return;
  for (int i = 1; i < lanes; ++i) CutTile::add(sum, shares[i * width + item]);
  cut_tile.finish(pair, sum);
}

}  // namespace sparse_autotune
