#include "ops/arguments.h"

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "autotune/settings.h"
#include "ops/dense_layout.h"
#include "ops/tensor_rules.h"

namespace sparse_autotune {

void refuse(const std::string& text) { throw std::runtime_error("sparse_autotune: " + text); }

namespace {

// Where the two matrix dimensions of `dense` and of the result lie. -1: a vector has no n.
struct Axes {
  int64_t lead;  // leading dimensions
  int64_t k, n;  // in dense
  int64_t m, result_n;
};

Axes axes_of(const MatmulArguments& a) {
  const int64_t dims = a.dense.dim();
  expect(dims >= 1, "dense must have at least one dimension");
  if (dims == 1) return {0, 0, -1, 0, -1};
  const int64_t last = dims - 1, before = dims - 2;
  return a.sparse_right ? Axes{dims - 2, last, before, last, before}
                        : Axes{dims - 2, before, last, before, last};
}

void check_operands(const MatmulArguments& a) {
  expect(a.dense.defined(), "dense must be a tensor");  // Python's None comes as one undefined
  expect(a.values.dim() == 3, "values must have shape (nnzb, block_m, block_k)");
  expect(a.crow_indices.dim() == 1 && a.col_indices.dim() == 1, "indices must be vectors");
  const int64_t block_m = a.values.size(1), block_k = a.values.size(2);
  expect(block_m > 0 && block_k > 0, "a block must have at least one row and one column");
  expect(a.rows >= 0 && a.rows % block_m == 0, "block_m must divide the rows of the matrix");
  expect(a.cols >= 0 && a.cols % block_k == 0, "block_k must divide the columns of the matrix");
  expect(a.crow_indices.size(0) == a.rows / block_m + 1,
         "crow_indices must have one entry more than there are block rows");
  expect(a.col_indices.size(0) == a.values.size(0), "col_indices and values must agree on nnzb");
  // Without block rows nobody looks at the columns, which those of a transpose are counted by.
  expect((a.rows > 0 && a.cols > 0) || a.values.size(0) == 0,
         "a matrix without elements has no block");
  expect(index_type(a.crow_indices) == index_type(a.col_indices), "indices must share one dtype");
  expect(a.values.is_cpu() || a.values.is_cuda(), "tensors must be on the CPU or on a CUDA device");
  expect(same_device(a.values, a.dense) && same_device(a.values, a.crow_indices) &&
             same_device(a.values, a.col_indices),
         "all tensors must be on one device");
  expect(dtype_of(a.values) == dtype_of(a.dense), "values and dense must share one dtype");
  expect(a.activation >= 0 && a.activation <= static_cast<int64_t>(Activation::kSilu),
         "activation must be one of 0 to 4");
  expect_memory(a.crow_indices, "crow_indices");
  expect_memory(a.col_indices, "col_indices");
  expect_memory(a.values, "values");
  expect_memory(a.dense, "dense");
  // A product on the right with A is one on the left with A^T, and the other way round.
  const bool transposed = a.transpose != a.sparse_right;
  const int64_t inner = transposed ? a.rows : a.cols;
  expect(a.dense.size(axes_of(a).k) == inner, "the inner dimensions of the product must agree");
  if (a.bias.has_value()) {
    expect(a.bias->dim() == 1 && a.bias->size(0) == (transposed ? a.cols : a.rows),
           "bias must have one value per row of the product");
    expect(same_device(a.values, *a.bias) && dtype_of(*a.bias) == dtype_of(a.values),
           "bias must have the device and dtype of values");
    expect_memory(*a.bias, "bias");
  }
}

// The columns of the product and its batch, from the dimensions that are neither k nor m.
struct Folded {
  Step n{1, 0, 0}, batch{1, 0, 0};
  std::vector<Product::Outer> outer;
};

Folded fold_dimensions(const MatmulArguments& a, const Tensor& result, const Axes& axes) {
  Folded f;
  if (axes.n >= 0) {
    f.n = {a.dense.size(axes.n), a.dense.stride(axes.n), result.stride(axes.result_n)};
  }
  std::vector<Step> lead;  // innermost first
  bool matrices = true;
  for (int64_t d = axes.lead - 1; d >= 0; --d) {
    const Step step{a.dense.size(d), a.dense.stride(d), result.stride(d)};
    matrices = matrices && step.size > 0;
    Step& inner = lead.empty() ? f.n : lead.back();
    if (!fold(inner, step)) lead.push_back(step);
  }
  if (!matrices) {  // as one without columns
    f.n.size = 0;
    lead.clear();
  }
  if (!lead.empty()) {
    f.batch = lead.front();
    for (size_t i = 1; i < lead.size(); ++i) {
      f.outer.push_back({lead[i].size, lead[i].b, lead[i].c});
    }
  }
  return f;
}

// First and one-past-last byte that a tensor's elements touch.
std::pair<uintptr_t, uintptr_t> extent(const Tensor& t) {
  const auto begin = reinterpret_cast<uintptr_t>(t.data_ptr());
  const int64_t span = span_of(t.sizes().data(), t.strides().data(), t.dim());
  return {begin, begin + static_cast<uintptr_t>(span) * t.element_size()};
}

}  // namespace

std::vector<int64_t> result_sizes(const MatmulArguments& a) {
  check_operands(a);
  const Axes axes = axes_of(a);
  std::vector<int64_t> sizes;
  for (int64_t d = 0; d < a.dense.dim(); ++d) sizes.push_back(a.dense.size(d));
  sizes[static_cast<size_t>(axes.m)] = a.transpose != a.sparse_right ? a.cols : a.rows;
  return sizes;
}

std::optional<Product> bind_product(const MatmulArguments& a, const Tensor& result) {
  const Axes axes = axes_of(a);
  Product product;
  Problem& p = product.problem;
  const Tensor values = in_one_piece(a.values);
  const Tensor crow = in_one_piece(a.crow_indices), col = in_one_piece(a.col_indices);
  product.kept_alive = {values, crow, col, a.dense, result};

  p.op = Op::kMatmul;
  p.device = values.is_cpu() ? DeviceType::kCpu : DeviceType::kCuda;
  p.dtype = value_dtype(values);
  p.index_type = index_type(crow);
  p.nnzb = values.size(0);
  p.transpose = a.transpose != a.sparse_right;
  p.block_m = values.size(p.transpose ? 2 : 1);
  p.block_k = values.size(p.transpose ? 1 : 2);
  p.m = p.transpose ? a.cols : a.rows;
  p.k = p.transpose ? a.rows : a.cols;
  p.activation = static_cast<Activation>(a.activation);
  p.frozen = a.frozen;
  p.allow_tf32 = a.allow_tf32 && p.dtype == DType::kFloat32;
  p.deterministic = a.deterministic;
  p.exact_nonfinite = exact_nonfinite();
  p.longest_row = -1;

  Folded folded = fold_dimensions(a, result, axes);
  p.n = folded.n.size;
  p.batch = folded.batch.size;
  p.b_batch_stride = folded.batch.b;
  p.c_batch_stride = folded.batch.c;
  product.outer = std::move(folded.outer);

  const auto c = dense_layout(p.m, p.n, result.stride(axes.m), folded.n.c);
  if (!c) return std::nullopt;
  const auto b = dense_layout(p.k, p.n, a.dense.stride(axes.k), folded.n.b);
  if (!b) {  // neither rows nor columns contiguous: torch's own matmul copies here too
    MatmulArguments contiguous = a;
    contiguous.dense = torch::stable::contiguous(a.dense);
    return bind_product(contiguous, result);
  }
  set_layouts(&p, *b, *c);

  Launch& l = product.launch;
  l.values = values.data_ptr();
  l.crow_indices = crow.data_ptr();
  l.col_indices = col.data_ptr();
  l.b = a.dense.data_ptr();
  l.c = result.data_ptr();
  if (a.bias.has_value()) {
    const Tensor bias = in_one_piece(*a.bias);
    product.kept_alive.push_back(bias);
    l.bias = bias.data_ptr();
    p.has_bias = true;
  }
  set_alignments(&p, l.values, l.b, l.c);
  const int64_t item = size_of(p.dtype);
  for (const auto& outer : product.outer) {
    p.b_alignment = std::min(p.b_alignment, alignment_of(nullptr, outer.b_stride, 0, item));
    p.c_alignment = std::min(p.c_alignment, alignment_of(nullptr, outer.c_stride, 0, item));
  }

  product.pattern = pattern_key(crow, col, a.rows / values.size(1), a.cols / values.size(2));
  return product;
}

void check_out(const MatmulArguments& a, const Tensor& out, const std::vector<int64_t>& sizes) {
  bool same = out.dim() == static_cast<int64_t>(sizes.size());
  for (size_t d = 0; same && d < sizes.size(); ++d) {
    same = out.size(static_cast<int64_t>(d)) == sizes[d];
  }
  if (!same) refuse("out must have the shape of the product; it is never resized");
  int32_t wanted = 0, given = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(a.values.get(), &wanted));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(out.get(), &given));
  if (wanted != given) refuse("out must have the dtype of values");
  if (out.is_cpu() != a.values.is_cpu() ||
      (!out.is_cpu() && out.get_device_index() != a.values.get_device_index())) {
    refuse("out must be on the device of values");
  }
  if (out.numel() == 0) return;  // nothing is written
  expect_memory(out, "out");
  // Elements of `out` must be apart: sorted by stride, each dimension steps over the one below.
  std::vector<std::pair<int64_t, int64_t>> steps;
  for (int64_t d = 0; d < out.dim(); ++d) {
    if (out.size(d) > 1) steps.emplace_back(out.stride(d), out.size(d));
  }
  std::sort(steps.begin(), steps.end());
  int64_t reach = 1;
  for (const auto& [stride, size] : steps) {
    if (stride < reach) refuse("out must not overlap itself");
    reach = stride * (size - 1) + reach;
  }
  const auto [begin, end] = extent(out);
  const auto apart = [&, begin = begin, end = end](const Tensor& input) {
    const auto [first, last] = extent(input);
    if (begin < last && first < end) refuse("out must not overlap an input");
  };
  apart(a.crow_indices);
  apart(a.col_indices);
  apart(a.values);
  apart(a.dense);
  if (a.bias.has_value()) apart(*a.bias);
}

}  // namespace sparse_autotune
