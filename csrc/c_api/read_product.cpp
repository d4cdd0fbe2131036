#include "c_api/read_product.h"

#include <algorithm>
#include <cstdint>

#include "c_api/status.h"

namespace sparse_autotune {
namespace {

constexpr int64_t kMostElements = int64_t{1}
                                  << 48;  // more than any memory holds, and far from overflow
constexpr int64_t kWorkspaceAlignment = 256;

void require_switch(int32_t value, const char* argument) {
  require(value == 0 || value == 1, argument, "must be 0 or 1", value);
}

std::string member(const char* argument, const char* name) {
  return std::string(argument) + "." + name;
}

void require_size(int64_t size, int64_t expected, const char* argument, const char* name,
                  const char* of_what) {
  if (size == expected) return;
  break_rule(member(argument, name), std::string("must be the ") + std::to_string(expected) + " " +
                                         of_what + ", got " + std::to_string(size));
}

// Rows and columns are as expected already.
void read_dense(const sparse_autotune_dense& d, DType dtype, int32_t device, const char* argument,
                bool written, DenseView* out) {
  const auto rule = [&](bool holds, const char* name, const char* words, int64_t value) {
    if (!holds) break_rule(member(argument, name), words + (", got " + std::to_string(value)));
  };
  rule(d.batch >= 0, "batch", "must not be negative", d.batch);
  const int64_t batch = std::max<int64_t>(d.batch, 1);
  const bool packed = d.row_stride == 0 && d.col_stride == 0;
  const int64_t row_stride = packed ? std::max<int64_t>(d.cols, 1) : d.row_stride;
  const int64_t col_stride = packed ? 1 : d.col_stride;
  rule(row_stride >= 1, "row_stride", "must be positive", row_stride);
  rule(col_stride >= 1, "col_stride", "must be positive", col_stride);
  const bool rows_whole = (d.cols <= 1 || col_stride == 1) && (d.rows <= 1 || row_stride >= d.cols);
  const bool cols_whole = (d.rows <= 1 || row_stride == 1) && (d.cols <= 1 || col_stride >= d.rows);
  rule(rows_whole || cols_whole, "row_stride",
       "and col_stride must be 1 in one direction, and step over the matrix in the other",
       row_stride);
  rule(d.batch_stride >= 0, "batch_stride", "must not be negative", d.batch_stride);
  const bool empty = d.rows == 0 || d.cols == 0;
  rule(!written || batch == 1 || d.batch_stride > 0 || empty, "batch_stride",
       "must be positive where a batch is written", d.batch_stride);
  bounded_product(argument, {d.rows, row_stride});
  bounded_product(argument, {d.cols, col_stride});
  bounded_product(argument, {batch, d.batch_stride});
  const int64_t elements = bounded_product(argument, {batch, d.rows, d.cols});
  if (d.data == nullptr && elements > 0) break_rule(member(argument, "data"), "must not be null");
  require_aligned(d.data, size_of(dtype), argument);
  const bool is_batch = batch > 1;
  out->sizes = {batch, d.rows, d.cols};
  out->strides = {d.batch_stride, row_stride, col_stride};
  out->view = {.data = d.data,
               .sizes = out->sizes.data() + (is_batch ? 0 : 1),
               .strides = out->strides.data() + (is_batch ? 0 : 1),
               .dims = is_batch ? 3 : 2,
               .type = static_cast<ElementType>(dtype),
               .device = device};
}

DType dtype_of(sparse_autotune_dtype dtype) {
  require(dtype >= SPARSE_AUTOTUNE_FLOAT16 && dtype <= SPARSE_AUTOTUNE_FLOAT64, "product.dtype",
          "must be one of SPARSE_AUTOTUNE_FLOAT16 to SPARSE_AUTOTUNE_FLOAT64", dtype);
  return static_cast<DType>(dtype);
}

void require_values(const void* values, const sparse_autotune_pattern& pattern, DType dtype) {
  if (values == nullptr && pattern.nnzb > 0) {
    break_rule("product.values", "must not be null where the pattern has blocks");
  }
  require_aligned(values, size_of(dtype), "product.values");
}

// What both structs have after their operands.
template <typename Product>
void read_rest(const Product& p, CCall* out) {
  require_switch(p.allow_tf32, "product.allow_tf32");
  require_switch(p.deterministic, "product.deterministic");
  require(p.reserved == 0, "product.reserved", "must be 0", p.reserved);
  require(p.workspace_bytes >= 0, "product.workspace_bytes", "must not be negative",
          p.workspace_bytes);
  require_aligned(p.workspace, kWorkspaceAlignment, "product.workspace");
  if (p.variant != nullptr) {
    if (*p.variant == '\0') break_rule("product.variant", "must be a name or null, got ''");
    out->variant = p.variant;
  }
  out->stream = p.stream;
  out->workspace = p.workspace;
  out->workspace_bytes = p.workspace_bytes;
}

// The rules that all callers share; what breaks them here was told in more words above.
void require_rule(const char* broken) {
  if (broken != nullptr) break_rule("product", std::string("breaks a rule: ") + broken);
}

}  // namespace

void require_aligned(const void* address, int64_t item, const char* argument) {
  const auto number = reinterpret_cast<uintptr_t>(address);
  if (number % static_cast<uintptr_t>(item) != 0) {
    break_rule(argument, "must be aligned to " + std::to_string(item) + " bytes, is at " +
                             std::to_string(number));
  }
}

int64_t bounded_product(const char* argument, std::initializer_list<int64_t> sizes) {
  int64_t product = 1;
  for (const int64_t size : sizes) {
    if (size < 0) break_rule(argument, "has a negative size, " + std::to_string(size));
    if (__builtin_mul_overflow(product, size, &product) || product > kMostElements) {
      break_rule(argument, "has more than 2^48 elements");
    }
  }
  return product;
}

CCall read_product(const sparse_autotune_pattern& pattern, const sparse_autotune_product* given) {
  const auto p = read_struct(given, "product");
  const DType dtype = dtype_of(p.dtype);
  require_switch(p.sparse_right, "product.sparse_right");
  require_switch(p.transpose, "product.transpose");
  require_switch(p.frozen, "product.frozen");
  require(p.activation >= SPARSE_AUTOTUNE_NONE && p.activation <= SPARSE_AUTOTUNE_SILU,
          "product.activation", "must be one of SPARSE_AUTOTUNE_NONE to SPARSE_AUTOTUNE_SILU",
          p.activation);
  CCall out{};
  read_rest(p, &out);
  require_values(p.values, pattern, dtype);
  const bool right = p.sparse_right == 1;
  const int64_t outer = p.transpose == 1 ? pattern.cols : pattern.rows;  // op(A) is outer x inner
  const int64_t inner = p.transpose == 1 ? pattern.rows : pattern.cols;
  const auto& [data, rows, cols, row_stride, col_stride, batch, batch_stride] = p.dense;
  if (right) {
    require_size(cols, outer, "product.dense", "cols", "rows of op(A)");
    require_size(p.result.cols, inner, "product.result", "cols", "columns of op(A)");
    require_size(p.result.rows, rows, "product.result", "rows", "rows of product.dense");
  } else {
    require_size(rows, inner, "product.dense", "rows", "columns of op(A)");
    require_size(p.result.rows, outer, "product.result", "rows", "rows of op(A)");
    require_size(p.result.cols, cols, "product.result", "cols", "columns of product.dense");
  }
  require_size(std::max<int64_t>(p.result.batch, 1), std::max<int64_t>(batch, 1), "product.result",
               "batch", "matrices of product.dense");
  DenseView dense, result;
  const int32_t device = pattern.context.ordinal();
  read_dense(p.dense, dtype, device, "product.dense", false, &dense);
  read_dense(p.result, dtype, device, "product.result", true, &result);
  require_aligned(p.bias, size_of(dtype), "product.bias");

  const int64_t value_sizes[] = {pattern.nnzb, pattern.block_m, pattern.block_k};
  const int64_t value_strides[] = {pattern.block_m * pattern.block_k, pattern.block_k, 1};
  const int64_t bias_size = right ? inner : outer, bias_stride = 1;
  MatmulCall call{.crow_indices = pattern.call.crow_indices,
                  .col_indices = pattern.call.col_indices,
                  .values = {.data = p.values,
                             .sizes = value_sizes,
                             .strides = value_strides,
                             .dims = 3,
                             .type = dense.view.type,
                             .device = device},
                  .rows = pattern.rows,
                  .cols = pattern.cols,
                  .dense = dense.view,
                  .bias = std::nullopt,
                  .sparse_right = right,
                  .transpose = p.transpose == 1,
                  .activation = p.activation,
                  .frozen = p.frozen == 1,
                  .allow_tf32 = p.allow_tf32 == 1,
                  .deterministic = p.deterministic == 1};
  if (p.bias != nullptr) {
    call.bias = TensorView{.data = p.bias,
                           .sizes = &bias_size,
                           .strides = &bias_stride,
                           .dims = 1,
                           .type = dense.view.type,
                           .device = device};
  }
  require_rule(broken_rule(call));
  require_rule(broken_rule_of_result(call, result.view));
  if (normalise(call, result.view, &out.call).any()) {
    require_rule("rows or columns of dense matrices must be contiguous");
  }
  return out;
}

CCall read_product(const sparse_autotune_pattern& pattern,
                   const sparse_autotune_sampled_product* given) {
  const auto p = read_struct(given, "product");
  const DType dtype = dtype_of(p.dtype);
  CCall out{};
  read_rest(p, &out);
  require_values(p.values, pattern, dtype);
  require_size(p.x.rows, pattern.rows, "product.x", "rows", "rows of the pattern");
  require_size(p.y.cols, pattern.cols, "product.y", "cols", "columns of the pattern");
  require_size(p.y.rows, p.x.cols, "product.y", "rows", "columns of product.x");
  require_size(std::max<int64_t>(p.y.batch, 1), std::max<int64_t>(p.x.batch, 1), "product.y",
               "batch", "matrices of product.x");
  DenseView x, y;
  const int32_t device = pattern.context.ordinal();
  read_dense(p.x, dtype, device, "product.x", false, &x);
  read_dense(p.y, dtype, device, "product.y", false, &y);
  const int64_t sizes[] = {pattern.nnzb, pattern.block_m, pattern.block_k};
  const int64_t strides[] = {pattern.block_m * pattern.block_k, pattern.block_k, 1};
  const TensorView values{.data = p.values,
                          .sizes = sizes,
                          .strides = strides,
                          .dims = 3,
                          .type = x.view.type,
                          .device = device};
  const SampledCall call{.pattern = pattern.call,
                         .x = x.view,
                         .y = y.view,
                         .allow_tf32 = p.allow_tf32 == 1,
                         .deterministic = p.deterministic == 1};
  require_rule(broken_rule(call));
  for (const TensorView& input : {x.view, y.view}) {
    if (elements_of(values) > 0 && overlap(values, input)) {
      break_rule("product.values", "must not overlap product.x and product.y");
    }
  }
  if (normalise(call, values, &out.call).any()) {
    require_rule("rows or columns of dense matrices must be contiguous");
  }
  return out;
}

}  // namespace sparse_autotune
