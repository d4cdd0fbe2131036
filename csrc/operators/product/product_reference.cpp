#include "operators/product/product_reference.h"

#include <cmath>

#include "half.h"
#include "kernels/cpu/shared/elements.h"
#include "operators/product/product_tiles.h"
#include "operators/product/product_tolerance.h"

namespace sparse_autotune {
namespace {

// A step along k of the sums of a tile, and of those of the magnitudes. The reference of a large
// product is a good part of a race's time, so it is compiled for wider vectors, too.
#if defined(__x86_64__)
__attribute__((target_clones("avx512f", "avx2", "default")))
#endif
void add_products(const double* __restrict left, const double* __restrict right, int rows, int cols,
                  double* __restrict sum, double* __restrict magnitude) {
  for (int i = 0; i < rows; ++i) {
    for (int j = 0; j < cols; ++j) {
      const double product = left[i] * right[j];
      sum[i * kTileCols + j] += product;
      magnitude[i * kTileCols + j] += std::abs(product);
    }
  }
}

template <typename T>
void compute_tile(const Problem& p, const Launch& l, const ProductTile& tile, Expected* expected) {
  const Strides s = strides_of_b(p);
  const T* values = static_cast<const T*>(l.values);
  const T* b = static_cast<const T*>(l.b) + tile.batch * s.batch_stride;
  const int64_t begin = load_index(l.crow_indices, tile.block_row, p.index_type);
  const int64_t end = load_index(l.crow_indices, tile.block_row + 1, p.index_type);
  const int rows = tile_rows(tile, p), cols = tile_cols(tile, p);
  double sum[kTileElements] = {}, magnitude[kTileElements] = {};
  for (int64_t block = begin; block < end; ++block) {
    const int64_t first = load_index(l.col_indices, block, p.index_type) * p.block_k;
    const int64_t position = p.transpose ? load_index(l.positions, block, p.index_type) : block;
    const T* a =
        values + position * p.block_m * p.block_k + tile.row % p.block_m * row_stride_in_block(p);
    for (int64_t k = 0; k < p.block_k; ++k) {
      const T* line = b + (first + k) * s.row_stride + tile.col * s.col_stride;
      double left[kTileRows], right[kTileCols];
      for (int64_t i = 0; i < rows; ++i) {
        left[i] = widened(a[i * row_stride_in_block(p) + k * k_stride_in_block(p)]);
      }
      for (int64_t j = 0; j < cols; ++j) right[j] = widened(line[j * s.col_stride]);
      add_products(left, right, rows, cols, sum, magnitude);
    }
  }
  for (int64_t i = 0; i < rows; ++i) {
    const double bias = p.has_bias ? widened(static_cast<const T*>(l.bias)[tile.row + i]) : 0;
    for (int64_t j = 0; j < cols; ++j) {
      const int64_t at = i * kTileCols + j;
      expected[at] = expected_element(sum[at], bias, magnitude[at] + std::abs(bias),
                                      (end - begin) * p.block_k + 1, p);
    }
  }
}

template <typename T>
void compute_sampled_tile(const Problem& p, const Launch& l, const ProductTile& tile,
                          Expected* expected) {
  const Strides s = strides_of_b(p), t = strides_of_c(p);
  const int64_t first_row = tile.block_row * p.block_m + tile.row;
  const int64_t first_col =
      load_index(l.col_indices, tile.batch, p.index_type) * p.block_k + tile.col;
  const T* b = static_cast<const T*>(l.b) + first_col * s.row_stride;
  const T* c = static_cast<const T*>(l.c) + first_row * t.row_stride;
  for (int i = 0; i < tile_rows(tile, p); ++i) {
    for (int j = 0; j < tile_cols(tile, p); ++j) {
      double sum = 0, magnitude = 0;
      for (int64_t matrix = 0; matrix < p.batch; ++matrix) {
        const T* left = c + matrix * t.batch_stride + i * t.row_stride;
        const T* right = b + matrix * s.batch_stride + j * s.row_stride;
        for (int64_t q = 0; q < p.n; ++q) {
          const double product =
              double{widened(left[q * t.col_stride])} * widened(right[q * s.col_stride]);
          sum += product;
          magnitude += std::abs(product);
        }
      }
      expected[i * kTileCols + j] = expected_element(sum, 0, magnitude, sampled_length(p), p);
    }
  }
}

}  // namespace

#ifndef SPARSE_AUTOTUNE_WITH_CUDA
Status detail::product_reference_cuda(const Problem&, const Launch&, const Tile*, int64_t,
                                      Expected*) {
  return Status::failed(StatusCode::kLaunchFailed, "this build has no CUDA");
}
#endif

Status product_reference(const Problem& p, const Launch& operands, const Tile* tiles, int64_t count,
                         Expected* expected) {
  if (p.device == DeviceType::kCuda) {
    return detail::product_reference_cuda(p, operands, tiles, count, expected);
  }
  with_type(p.dtype, [&]<typename T>(T*) {
    parallel_for(operands.parallel, 0, count, 1, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        const ProductTile tile = of_product(tiles[t]);
        if (p.op == Op::kSampled) {
          compute_sampled_tile<T>(p, operands, tile, expected + t * kTileElements);
        } else {
          compute_tile<T>(p, operands, tile, expected + t * kTileElements);
        }
      }
    });
  });
  return Status::ok();
}

}  // namespace sparse_autotune
