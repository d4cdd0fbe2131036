// Attention in fp64, row by row, with what a right result may be off by: code that host and device
// share, and no kernel uses.
#pragma once

#include <cmath>
#include <cstdint>

#include "host_device.h"
#include "operators/attention/attention_tolerance.h"

namespace sparse_autotune::attention {

// A number of any type as a double.
template <typename Element>
struct Reference {
  Problem p;
  Launch l;

  SPARSE_AUTOTUNE_HOST_DEVICE Reference(const Problem& problem, const Launch& launch)
      : p(problem), l(launch) {}

  using T = typename Element::T;
  static SPARSE_AUTOTUNE_HOST_DEVICE const T* row_of(const void* data, const TensorStrides& s,
                                                     int64_t batch, int64_t head, int64_t i) {
    return static_cast<const T*>(data) + batch * s.batch + head * s.head + i * s.row;
  }
  SPARSE_AUTOTUNE_HOST_DEVICE const T* q(int64_t batch, int64_t head, int64_t i) const {
    return row_of(l.q, p.q, batch, head, i);
  }
  SPARSE_AUTOTUNE_HOST_DEVICE const T* k(int64_t batch, int64_t head, int64_t j) const {
    return row_of(l.k, p.k, batch, head / (p.heads / p.kv_heads), j);
  }
  SPARSE_AUTOTUNE_HOST_DEVICE const T* v(int64_t batch, int64_t head, int64_t j) const {
    return row_of(l.v, p.v, batch, head / (p.heads / p.kv_heads), j);
  }
  SPARSE_AUTOTUNE_HOST_DEVICE const T* dout(int64_t batch, int64_t head, int64_t i) const {
    return row_of(l.dout, p.dout, batch, head, i);
  }
  SPARSE_AUTOTUNE_HOST_DEVICE int64_t row_number(int64_t batch, int64_t head, int64_t i) const {
    return (batch * p.heads + head) * p.rows + i;
  }
  SPARSE_AUTOTUNE_HOST_DEVICE const T* out(int64_t batch, int64_t head, int64_t i) const {
    return row_of(l.out, strides_of_out(p), batch, head, i);
  }
  SPARSE_AUTOTUNE_HOST_DEVICE double value_of_row(const void* values, int64_t number) const {
    return p.dtype == DType::kFloat64 ? static_cast<const double*>(values)[number]
                                      : double{static_cast<const float*>(values)[number]};
  }

  struct Dot {
    double sum, magnitude;
  };
  SPARSE_AUTOTUNE_HOST_DEVICE Dot dot(const T* a, const T* b) const {
    Dot found{0, 0};
    for (int64_t d = 0; d < p.dim; ++d) {
      const double product = Element::load(a[d]) * Element::load(b[d]);
      found.sum += product;
      found.magnitude += fabs(product);
    }
    return found;
  }

  SPARSE_AUTOTUNE_HOST_DEVICE int64_t pattern(int64_t batch, int64_t head) const {
    return batch * p.mask_batch_stride + head * p.mask_head_stride;
  }
  // Calls visit(j) for the columns that row i sees.
  template <typename Visit>
  SPARSE_AUTOTUNE_HOST_DEVICE void for_each_column(int64_t batch, int64_t head, int64_t i,
                                                   Visit&& visit) const {
    const int64_t limit = p.is_causal && i + 1 < p.columns ? i + 1 : p.columns;
    if (p.block_m == 0) {
      for (int64_t j = 0; j < limit; ++j) visit(j);
      return;
    }
    const int64_t rows = (p.rows + p.block_m - 1) / p.block_m;
    const int32_t* crow = l.crow_indices + pattern(batch, head) * (rows + 1) + i / p.block_m;
    for (int64_t block = crow[0]; block < crow[1]; ++block) {
      const int64_t first = l.col_indices[block] * p.block_n;
      const int64_t end = first + p.block_n < limit ? first + p.block_n : limit;
      for (int64_t j = first; j < end; ++j) visit(j);
    }
  }
  // Calls visit(i) for the rows that see column j.
  template <typename Visit>
  SPARSE_AUTOTUNE_HOST_DEVICE void for_each_row(int64_t batch, int64_t head, int64_t j,
                                                Visit&& visit) const {
    const int64_t least = p.is_causal ? j : 0;
    if (p.block_m == 0) {
      for (int64_t i = least; i < p.rows; ++i) visit(i);
      return;
    }
    const int64_t columns = (p.columns + p.block_n - 1) / p.block_n;
    const int32_t* ccol = l.ccol_indices + pattern(batch, head) * (columns + 1) + j / p.block_n;
    for (int64_t block = ccol[0]; block < ccol[1]; ++block) {
      const int64_t first = l.row_indices[block] * p.block_m;
      const int64_t end = first + p.block_m < p.rows ? first + p.block_m : p.rows;
      for (int64_t i = first > least ? first : least; i < end; ++i) visit(i);
    }
  }

  // A score and its error.
  struct Score {
    double value, error;
  };
  SPARSE_AUTOTUNE_HOST_DEVICE Score score(int64_t batch, int64_t head, int64_t i, int64_t j,
                                          const Precision& precision) const {
    const Dot found = dot(q(batch, head, i), k(batch, head, j));
    const double value = l.scale * found.sum;
    return {value, fabs(l.scale) * found.magnitude * precision.sum(p.dim) +
                       4 * precision.accumulator * fabs(value)};
  }

  // Columns [first, first + count) of row i of `out`, and lse.
  SPARSE_AUTOTUNE_HOST_DEVICE void forward(int64_t batch, int64_t head, int64_t i, int64_t first,
                                           int count, Expected* expected, Expected* lse) const {
    const Precision precision(p);
    double sums[kTileCols] = {}, magnitudes[kTileCols] = {}, squares[kTileCols] = {},
           unweighted[kTileCols] = {};
    double total = 0, total_squares = 0, largest = -HUGE_VAL, error = 0;
    int64_t seen = 0;
    for_each_column(batch, head, i, [&](int64_t j) {
      const Score s = score(batch, head, i, j, precision);
      ++seen;
      if (s.error > error) error = s.error;
      if (s.value > largest) {  // what was summed up to now is relative to a smaller one
        const double factor = exp(largest - s.value);
        total *= factor;
        total_squares *= factor * factor;
        for (int c = 0; c < count; ++c) {
          sums[c] *= factor;
          magnitudes[c] *= factor;
          squares[c] *= factor * factor;
        }
        largest = s.value;
      }
      const double probability = exp(s.value - largest);
      const T* const right = v(batch, head, j) + first;
      total += probability;
      total_squares += probability * probability;
      for (int c = 0; c < count; ++c) {
        const double x = Element::load(right[c]), term = probability * x;
        sums[c] += term;
        magnitudes[c] += fabs(term);
        squares[c] += term * term;
        unweighted[c] += x * x;
      }
    });
    const double relative = error + precision.sum(seen);
    if (seen == 0) total = 1;  // zeros, of no error
    for (int c = 0; c < count && expected != nullptr; ++c) {
      const double value = sums[c] / total, size = fabs(value);
      const double rounded =
          precision.probability * (sqrt(squares[c]) + size * sqrt(total_squares)) +
          precision.smallest / 2 * (sqrt(unweighted[c]) + size * sqrt(static_cast<double>(seen)));
      expected[c] = {value, (magnitudes[c] / total + size) * relative + 4 * rounded / total +
                                size * precision.unit + precision.smallest};
    }
    const double value = seen == 0 ? -HUGE_VAL : largest + log(total);
    const double own = p.dtype == DType::kFloat64 ? 0x1p-53 : 0x1p-24;
    if (lse != nullptr) {
      *lse = {value, relative + precision.exponential + (seen == 0 ? 1 : 2 * fabs(value)) * own +
                         precision.smallest};
    }
  }

  // What a row of a sum is multiplied by: with an error, and with a rounding of random sign.
  struct Weight {
    double value, error, rounding;
  };
  // What a pair of a row and a column adds to gradients.
  struct Pair {
    Weight probability, gradient;  // the latter of the score
  };
  struct RowFacts {
    double lse, delta, delta_error;
  };
  SPARSE_AUTOTUNE_HOST_DEVICE RowFacts facts_of_row(int64_t batch, int64_t head, int64_t i,
                                                    const Precision& precision) const {
    const int64_t number = row_number(batch, head, i);
    const Dot found = dot(dout(batch, head, i), out(batch, head, i));
    const double dlse = p.has_dlse ? value_of_row(l.dlse, number) : 0;
    return {value_of_row(l.lse, number), found.sum - dlse,
            found.magnitude * precision.sum(p.dim) + fabs(dlse) * precision.accumulator};
  }
  SPARSE_AUTOTUNE_HOST_DEVICE Pair pair(int64_t batch, int64_t head, int64_t i, int64_t j,
                                        const RowFacts& row, const Precision& precision) const {
    const Score s = score(batch, head, i, j, precision);
    const Dot product = dot(dout(batch, head, i), v(batch, head, j));
    const double probability = exp(s.value - row.lse);
    const double relative =
        s.error + precision.accumulator * (8 + 4 * fabs(row.lse) + 4 * fabs(s.value));
    const double product_error = product.magnitude * precision.sum(p.dim);
    const double factor = product.sum - row.delta;
    const double error = probability * (relative * (fabs(product.sum) + fabs(row.delta)) +
                                        product_error + row.delta_error);
    return {{probability, probability * relative, precision.of_weight(probability, 0)},
            {probability * factor, error, precision.of_weight(probability * factor, factor)}};
  }

  // Sums of weighted rows, with what they may be off by.
  struct Sums {
    double value[kTileCols] = {}, error[kTileCols] = {}, magnitude[kTileCols] = {},
           squares[kTileCols] = {};
    int64_t terms = 0;

    SPARSE_AUTOTUNE_HOST_DEVICE void add(const Weight& weight, const T* row, int count) {
      for (int c = 0; c < count; ++c) {
        const double x = Element::load(row[c]), term = weight.value * x;
        value[c] += term;
        error[c] += weight.error * fabs(x);
        magnitude[c] += fabs(term);
        squares[c] += weight.rounding * x * weight.rounding * x;
      }
      ++terms;
    }
    SPARSE_AUTOTUNE_HOST_DEVICE void finish(double scale, int count, const Precision& precision,
                                            Expected* expected) const {
      for (int c = 0; c < count; ++c) {
        const double result = scale * value[c];
        const double off = error[c] + magnitude[c] * precision.sum(terms) + 4 * sqrt(squares[c]);
        expected[c] = {result,
                       fabs(scale) * off + fabs(result) * precision.unit + precision.smallest};
      }
    }
  };

  SPARSE_AUTOTUNE_HOST_DEVICE void dq(int64_t batch, int64_t head, int64_t i, int64_t first,
                                      int count, Expected* expected) const {
    const Precision precision(p);
    const RowFacts row = facts_of_row(batch, head, i, precision);
    Sums sums;
    for_each_column(batch, head, i, [&](int64_t j) {
      const Pair found = pair(batch, head, i, j, row, precision);
      sums.add(found.gradient, k(batch, head, j) + first, count);
    });
    sums.finish(l.scale, count, precision, expected);
  }

  // Of dk, or of dv.
  SPARSE_AUTOTUNE_HOST_DEVICE void dkv(bool of_keys, int64_t batch, int64_t kv_head, int64_t j,
                                       int64_t first, int count, Expected* expected) const {
    const Precision precision(p);
    const int64_t group = p.heads / p.kv_heads;
    Sums sums;
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      for_each_row(batch, head, j, [&](int64_t i) {
        const RowFacts row = facts_of_row(batch, head, i, precision);
        const Pair found = pair(batch, head, i, j, row, precision);
        if (of_keys) {
          sums.add(found.gradient, q(batch, head, i) + first, count);
        } else {
          sums.add(found.probability, dout(batch, head, i) + first, count);
        }
      });
    }
    sums.finish(of_keys ? l.scale : 1, count, precision, expected);
  }

  // Row `row` of a tile.
  SPARSE_AUTOTUNE_HOST_DEVICE void row_of_tile(const Tile& tile, int row,
                                               Expected* expected) const {
    const int64_t heads = p.pass == Pass::kForward || tile.output == 0 ? p.heads : p.kv_heads;
    const int64_t batch = tile.origin[0] / heads, head = tile.origin[0] % heads;
    const int64_t i = tile.origin[1] + row, first = tile.origin[2];
    if (p.pass == Pass::kForward) {
      const bool of_lse = tile.output == 1;
      forward(batch, head, i, first, of_lse ? 0 : tile.cols, of_lse ? nullptr : expected,
              of_lse ? expected : nullptr);
    } else if (tile.output == 0) {
      dq(batch, head, i, first, tile.cols, expected);
    } else {
      dkv(tile.output == 1, batch, head, i, first, tile.cols, expected);
    }
  }
};

// On the device of the problem; on a GPU enqueued on the launch's stream.
Status expect_tiles_cuda(const Problem& problem, const Launch& launch, const Tile* tiles,
                         int64_t count, Expected* expected);
// Writes out and lse for a race of backward passes.
Status derive_forward_cuda(const Problem& problem, const Launch& launch);

}  // namespace sparse_autotune::attention
