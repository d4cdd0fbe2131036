#include <cuda_runtime.h>

#include "kernels/cuda/device/load_index.cuh"
#include "kernels/cuda/host/cuda_status.h"
#include "kernels/cuda/host/element_types.h"
#include "operators/product/product_reference.h"
#include "operators/product/product_tiles.h"
#include "operators/product/product_tolerance.h"

namespace sparse_autotune {
namespace {

constexpr int kThreads = 256;

struct TileArguments {
  Launch operands;
  const Tile* tiles;
  Expected* expected;
  Problem problem;
  Strides b_strides, c_strides;
  int64_t row_stride, k_stride;  // in a block of values
};

constexpr int kStripRows = kThreads / kTileCols;

// A thread an element, or a few of one column: `gridDim.y` thread blocks share a tile.
template <typename Element>
__device__ void for_each_element(const TileArguments& a, Element&& element) {
  const ProductTile tile = of_product(a.tiles[blockIdx.x]);
  const int j = threadIdx.x % kTileCols;
  if (j >= tile_cols(tile, a.problem)) return;
  const int rows = tile_rows(tile, a.problem);
  const int first = blockIdx.y * kStripRows + threadIdx.x / kTileCols;
  for (int i = first; i < rows; i += gridDim.y * kStripRows) {
    element(tile, i, j, a.expected[int64_t{blockIdx.x} * kTileElements + i * kTileCols + j]);
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads, 2) expected_kernel(const TileArguments a) {
  const bool wide = a.problem.index_type == IndexType::kInt64;
  for_each_element(a, [&](const ProductTile& tile, int i, int j, Expected& expected) {
    const int64_t begin = load_index(a.operands.crow_indices, tile.block_row, wide);
    const int64_t end = load_index(a.operands.crow_indices, tile.block_row + 1, wide);
    const T* b = static_cast<const T*>(a.operands.b) + tile.batch * a.b_strides.batch_stride +
                 (tile.col + j) * a.b_strides.col_stride;
    double sum = 0, magnitude = 0;
    for (int64_t block = begin; block < end; ++block) {
      const void* positions = a.operands.positions;
      const int64_t position = positions == nullptr ? block : load_index(positions, block, wide);
      const T* left = static_cast<const T*>(a.operands.values) +
                      position * a.problem.block_m * a.problem.block_k +
                      (tile.row % a.problem.block_m + i) * a.row_stride;
      const T* right = b + load_index(a.operands.col_indices, block, wide) * a.problem.block_k *
                               a.b_strides.row_stride;
      for (int64_t k = 0; k < a.problem.block_k; ++k) {
        const double product = static_cast<double>(*left) * static_cast<double>(*right);
        sum += product;
        magnitude += fabs(product);
        left += a.k_stride;
        right += a.b_strides.row_stride;
      }
    }
    const double bias =
        a.operands.bias == nullptr
            ? 0
            : static_cast<double>(static_cast<const T*>(a.operands.bias)[tile.row + i]);
    expected = expected_element(sum, bias, magnitude + fabs(bias),
                                (end - begin) * a.problem.block_k + 1, a.problem);
  });
}

template <typename T>
__global__ void __launch_bounds__(kThreads, 2) expected_sampled_kernel(const TileArguments a) {
  const bool wide = a.problem.index_type == IndexType::kInt64;
  for_each_element(a, [&](const ProductTile& tile, int i, int j, Expected& expected) {
    const int64_t row = tile.block_row * a.problem.block_m + tile.row + i;
    const int64_t col =
        load_index(a.operands.col_indices, tile.batch, wide) * a.problem.block_k + tile.col + j;
    double sum = 0, magnitude = 0;
    for (int64_t matrix = 0; matrix < a.problem.batch; ++matrix) {
      const T* left = static_cast<const T*>(a.operands.c) + matrix * a.c_strides.batch_stride +
                      row * a.c_strides.row_stride;
      const T* right = static_cast<const T*>(a.operands.b) + matrix * a.b_strides.batch_stride +
                       col * a.b_strides.row_stride;
      for (int64_t q = 0; q < a.problem.n; ++q) {
        const double product = static_cast<double>(left[q * a.c_strides.col_stride]) *
                               static_cast<double>(right[q * a.b_strides.col_stride]);
        sum += product;
        magnitude += fabs(product);
      }
    }
    expected = expected_element(sum, 0, magnitude, sampled_length(a.problem), a.problem);
  });
}

TileArguments tile_arguments(const Problem& p, const Launch& operands, const Tile* tiles,
                             Expected* expected) {
  return {operands,
          tiles,
          expected,
          p,
          strides_of_b(p),
          strides_of_c(p),
          row_stride_in_block(p),
          k_stride_in_block(p)};
}

}  // namespace

Status detail::product_reference_cuda(const Problem& p, const Launch& operands, const Tile* tiles,
                                      int64_t count, Expected* expected) {
  const TileArguments a = tile_arguments(p, operands, tiles, expected);
  const auto stream = static_cast<cudaStream_t>(operands.stream);
  with_type(p.dtype, [&]<typename T>(T*) {
    const dim3 blocks(static_cast<unsigned>(count), kTileRows / kStripRows);
    if (p.op == Op::kSampled) {
      expected_sampled_kernel<T><<<blocks, kThreads, 0, stream>>>(a);
    } else {
      expected_kernel<T><<<blocks, kThreads, 0, stream>>>(a);
    }
  });
  return to_status(cudaGetLastError(), "computing the reference");
}

}  // namespace sparse_autotune
