// What a right result is: which elements are checked, against what, and how far they may be off.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "autotune/operands.h"
#include "host_device.h"
#include "kernels/activation.h"
#include "variant.h"

namespace sparse_autotune {

// A part of the output inside one block row. Of C: `batch` is the matrix; of a sampled product's
// values: the stored block, within which row and column count.
struct Tile {
  int64_t batch, row, col, block_row;
};
constexpr int kTileRows = 16;
constexpr int kTileCols = 64;
constexpr int kTileElements = kTileRows * kTileCols;

// Rows and columns of a tile that the output has: within the block row, up to the output's edge.
SPARSE_AUTOTUNE_HOST_DEVICE inline int tile_rows(const Tile& tile, const Problem& p) {
  const int64_t left = p.block_m - tile.row % p.block_m;
  return left < kTileRows ? static_cast<int>(left) : kTileRows;
}
SPARSE_AUTOTUNE_HOST_DEVICE inline int tile_cols(const Tile& tile, const Problem& p) {
  const int64_t left = (p.op == Op::kSampled ? p.block_k : p.n) - tile.col;
  return left < kTileCols ? static_cast<int>(left) : kTileCols;
}

// The whole output where its fp64 reference costs at most `flop_limit`; otherwise tiles of the
// first, the last and the longest block row, and of at least 64 random pairs of block row and
// column strip (of a sampled product: stored block and strip), the same in every call. `crow` has
// block_rows + 1 entries.
std::vector<Tile> choose_tiles(const Problem& problem, const std::vector<int64_t>& crow,
                               double flop_limit);

// An element of the output in fp64, and how far a right result may be from it.
struct Expected {
  double value;
  double allowed;
};

// Whether the output is right, and why not. `missing`: how many of its elements are NaN; `written`:
// how many elements in it and around it are not poison; `worst`: the largest |result - expected| as
// a share of what is allowed. `error` becomes that, infinity where an element is missing or too
// many are written.
Status judge(const Problem& problem, uint64_t missing, uint64_t written, double worst,
             double* error);

// Unit roundoff: half the distance from 1 to the next number.
SPARSE_AUTOTUNE_HOST_DEVICE inline double unit_roundoff(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
      return 0x1p-11;
    case DType::kBFloat16:
      return 0x1p-8;
    case DType::kFloat32:
      return 0x1p-24;
    case DType::kFloat64:
      return 0x1p-53;
  }
  return 0;
}

// `product` is the sum of products in fp64, `magnitude` the same of absolute values (with the
// bias's), `length` the number of terms. The error of a sum of `length` rounded terms grows with
// sqrt(length) for errors of random sign (Higham, Accuracy and Stability of Numerical Algorithms,
// chapter 4) and never exceeds length * unit * magnitude; 4 sqrt(length) + 8 leaves room for biased
// rounding, as tensor cores do it. Half types accumulate in fp32.
SPARSE_AUTOTUNE_HOST_DEVICE inline Expected expected_element(double product, double bias,
                                                             double magnitude, int64_t length,
                                                             const Problem& p) {
  const double unit = unit_roundoff(p.dtype);
  const double accumulator = p.dtype == DType::kFloat64 ? 0x1p-53 : 0x1p-24;
  const double sum = product + bias;
  double inner = magnitude * accumulator * (8 + 4 * sqrt(static_cast<double>(length)));
  // TF32 keeps 11 bits of each input, cut rather than rounded by some.
  if (p.dtype == DType::kFloat32 && p.allow_tf32) inner += magnitude * 0x1p-9;
  // Library variants round the product before the bias, and the sum before the activation.
  if (p.has_bias || p.activation != Activation::kNone) {
    inner += (fabs(product) + fabs(sum)) * (unit + 16 * accumulator);
  }
  const double value = activate(sum, p.activation);
  // No activation is steeper than 1.13. The last term: outputs below the smallest normal number.
  const double smallest = p.dtype == DType::kFloat16   ? 0x1p-24
                          : p.dtype == DType::kFloat64 ? 0x1p-1022
                                                       : 0x1p-126;
  return {value, 1.13 * inner + fabs(value) * unit + smallest};
}

}  // namespace sparse_autotune
