// A kernel's arguments begin with where a product's operands lie and what it is. Host code.
#pragma once

#include "operators/product/product.h"

namespace sparse_autotune {

// Those of the launch's addresses and of the problem's numbers that the arguments have members for,
// named as there; not where these are TMA's descriptors, or typed. All else is zero.
template <typename Arguments>
Arguments arguments_of(const Problem& p, const Launch& l) {
  Arguments a{};
  if constexpr (requires { a.crow_indices = l.crow_indices; }) a.crow_indices = l.crow_indices;
  if constexpr (requires { a.col_indices = l.col_indices; }) a.col_indices = l.col_indices;
  if constexpr (requires { a.positions = l.positions; }) a.positions = l.positions;
  if constexpr (requires { a.values = l.values; }) a.values = l.values;
  if constexpr (requires { a.b = l.b; }) a.b = l.b;
  if constexpr (requires { a.c = l.c; }) a.c = l.c;
  if constexpr (requires { a.bias = l.bias; }) a.bias = l.bias;
  if constexpr (requires { a.sampled = l.sampled; }) a.sampled = l.sampled;
  const auto set = []<typename T>(T& to, auto from) { to = static_cast<T>(from); };
  if constexpr (requires { a.m; }) set(a.m, p.m);
  if constexpr (requires { a.n; }) set(a.n, p.n);
  if constexpr (requires { a.batch; }) set(a.batch, p.batch);
  if constexpr (requires { a.ldb; }) set(a.ldb, p.ldb);
  if constexpr (requires { a.ldc; }) set(a.ldc, p.ldc);
  if constexpr (requires { a.b_batch_stride; }) set(a.b_batch_stride, p.b_batch_stride);
  if constexpr (requires { a.c_batch_stride; }) set(a.c_batch_stride, p.c_batch_stride);
  if constexpr (requires { a.values_alignment; }) set(a.values_alignment, p.values_alignment);
  if constexpr (requires { a.b_alignment; }) set(a.b_alignment, p.b_alignment);
  if constexpr (requires { a.c_alignment; }) set(a.c_alignment, p.c_alignment);
  const bool c_rows = p.c_layout == Layout::kRowMajor;
  if constexpr (requires { a.c_rows; }) a.c_rows = c_rows;
  // Elements from one row of C to the next, and from one column to the next.
  if constexpr (requires { a.c_row; }) set(a.c_row, c_rows ? p.ldc : 1);
  if constexpr (requires { a.c_column; }) set(a.c_column, c_rows ? 1 : p.ldc);
  if constexpr (requires { a.b_batched; }) a.b_batched = p.b_batch_stride != 0;
  if constexpr (requires { a.c_batched; }) a.c_batched = p.c_batch_stride != 0;
  if constexpr (requires { a.block_m; }) set(a.block_m, p.block_m);
  if constexpr (requires { a.block_k; }) set(a.block_k, p.block_k);
  if constexpr (requires { a.block_rows; }) set(a.block_rows, block_rows(p));
  if constexpr (requires { a.block_cols; }) set(a.block_cols, block_cols(p));
  if constexpr (requires { a.activation; }) a.activation = p.activation;
  if constexpr (requires { a.wide_indices; }) a.wide_indices = p.index_type == IndexType::kInt64;
  return a;
}

}  // namespace sparse_autotune
