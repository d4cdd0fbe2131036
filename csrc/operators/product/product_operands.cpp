// The tuner's operands of a product: which there are, and where a launch has them.
#include "kernels/cpu/shared/elements.h"
#include "operators/product/product_operator.h"
#include "operators/product/product_reference.h"
#include "operators/product/product_tiles.h"

namespace sparse_autotune {
namespace {

Strides strides(int64_t rows, int64_t cols, Layout layout, int64_t ld, const Problem& p,
                int64_t batch_stride) {
  const bool row_major = layout == Layout::kRowMajor;
  return {rows, cols, row_major ? ld : 1, row_major ? 1 : ld, p.batch, batch_stride};
}

enum : size_t { kCrow, kCol, kPositions, kB, kBias, kValues, kC };  // operands by number

}  // namespace

Strides strides_of_values(const Problem& p) {
  return {p.block_m, p.block_k, p.block_k, 1, p.nnzb, p.block_m * p.block_k};
}
Strides strides_of_b(const Problem& p) {
  return strides(p.k, p.n, p.b_layout, p.ldb, p, p.b_batch_stride);
}
Strides strides_of_c(const Problem& p) {
  return strides(p.m, p.n, p.c_layout, p.ldc, p, p.c_batch_stride);
}
Strides strides_of_output(const Problem& p) {
  return p.op == Op::kSampled ? strides_of_values(p) : strides_of_c(p);
}

std::vector<Operand> ProductOperator::operands(const Problem& p, const Launch& user) const {
  const bool sampled = p.op == Op::kSampled;
  const int64_t item = size_of(p.dtype), index = size_of(p.index_type);
  const Operand values = sampled
                             ? Operand::output(p.dtype, strides_of_values(p), p.values_alignment)
                             : Operand::input(p.dtype, strides_of_values(p), p.values_alignment);
  const Operand c = sampled ? Operand::input(p.dtype, strides_of_c(p), p.c_alignment)
                            : Operand::output(p.dtype, strides_of_c(p), p.c_alignment);
  return {Operand::copied(user.crow_indices, (block_rows(p) + 1) * index),
          Operand::copied(user.col_indices, p.nnzb * index),
          Operand::copied(user.positions, p.transpose ? p.nnzb * index : 0),
          Operand::input(p.dtype, strides_of_b(p), p.b_alignment),
          Operand::input(p.dtype, {1, p.has_bias ? p.m : 0, 0, 1, 1, 0}, item),
          values,
          c};
}

void ProductOperator::bind(const Problem& p, char* const* at, Launch* l) const {
  l->crow_indices = at[kCrow];
  l->col_indices = at[kCol];
  l->positions = p.transpose ? at[kPositions] : nullptr;
  l->b = at[kB];
  l->bias = p.has_bias ? at[kBias] : nullptr;
  l->c = at[kC];
  l->values = p.op == Op::kSampled ? nullptr : at[kValues];
  l->sampled = p.op == Op::kSampled ? at[kValues] : nullptr;
}

Status ProductOperator::choose_tiles(const Problem& p, const ReadBack& read, double flop_limit,
                                     std::vector<Tile>* tiles) const {
  std::vector<int64_t> crow(static_cast<size_t>(block_rows(p) + 1)), raw(crow.size());
  const Status status = read(kCrow, raw.data());
  if (!status) return status;
  for (size_t i = 0; i < crow.size(); ++i) {
    crow[i] = load_index(raw.data(), static_cast<int64_t>(i), p.index_type);
  }
  for (const ProductTile& tile : sparse_autotune::choose_tiles(p, crow, flop_limit)) {
    tiles->push_back(on_output(tile, p));
  }
  return Status::ok();
}

Status ProductOperator::expect(const Problem& p, const Launch& launch, const Tile* tiles,
                               int64_t count, Expected* expected) const {
  return product_reference(p, launch, tiles, count, expected);
}

}  // namespace sparse_autotune
