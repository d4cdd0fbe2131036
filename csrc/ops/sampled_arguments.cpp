#include "ops/sampled_arguments.h"

#include <torch/csrc/stable/ops.h>

#include <array>
#include <utility>
#include <vector>

#include "autotune/settings.h"
#include "ops/dense_layout.h"
#include "ops/tensor_rules.h"

namespace sparse_autotune {
namespace {

void check_operands(const SampledArguments& a) {
  expect(a.x.defined() && a.y.defined(), "x and y must be tensors");
  expect(a.block_m > 0 && a.block_k > 0, "a block must have at least one row and one column");
  expect(a.rows >= 0 && a.rows % a.block_m == 0, "block_m must divide the rows of the pattern");
  expect(a.cols >= 0 && a.cols % a.block_k == 0, "block_k must divide the columns of the pattern");
  expect(a.crow_indices.dim() == 1 && a.col_indices.dim() == 1, "indices must be vectors");
  expect(a.crow_indices.size(0) == a.rows / a.block_m + 1,
         "crow_indices must have one entry more than there are block rows");
  expect((a.rows > 0 && a.cols > 0) || a.col_indices.size(0) == 0,
         "a pattern without elements has no block");
  expect(index_type(a.crow_indices) == index_type(a.col_indices), "indices must share one dtype");
  expect(a.x.is_cpu() || a.x.is_cuda(), "tensors must be on the CPU or on a CUDA device");
  expect(
      same_device(a.x, a.y) && same_device(a.x, a.crow_indices) && same_device(a.x, a.col_indices),
      "all tensors must be on one device");
  expect(dtype_of(a.x) == dtype_of(a.y), "x and y must share one dtype");
  const int64_t dims = a.x.dim();
  expect(dims >= 2 && a.y.dim() == dims, "x and y must be matrices, or batches of equal shape");
  for (int64_t d = 0; d < dims - 2; ++d) {
    expect(a.x.size(d) == a.y.size(d), "the leading dimensions of x and y must be equal");
  }
  expect_memory(a.crow_indices, "crow_indices");
  expect_memory(a.col_indices, "col_indices");
  expect_memory(a.x, "x");
  expect_memory(a.y, "y");
  expect(a.x.size(dims - 2) == a.rows, "x must have the rows of the pattern");
  expect(a.y.size(dims - 1) == a.cols, "y must have the columns of the pattern");
  expect(a.x.size(dims - 1) == a.y.size(dims - 2), "the inner dimensions of x and y must agree");
}

bool is_empty(const Problem& p) { return p.n == 0; }

// x is C and y is B^T of the product whose gradient this is.
Product bind_operands(const SampledArguments& a, const Tensor& result) {
  const int64_t last = a.x.dim() - 1, before = last - 1;
  Product product;
  Problem& p = product.problem;
  p.op = Op::kSampled;
  p.device = a.x.is_cpu() ? DeviceType::kCpu : DeviceType::kCuda;
  p.dtype = value_dtype(a.x);
  p.index_type = index_type(a.crow_indices);
  p.m = a.rows;
  p.k = a.cols;
  p.block_m = a.block_m;
  p.block_k = a.block_k;
  p.nnzb = a.col_indices.size(0);
  p.allow_tf32 = a.allow_tf32 && p.dtype == DType::kFloat32;
  p.deterministic = a.deterministic;
  p.exact_nonfinite = exact_nonfinite();
  p.longest_row = -1;

  // All leading dimensions are summed over, as n is: what steps alike in both operands is one.
  Step n{a.x.size(last), a.y.stride(before), a.x.stride(last)};
  std::vector<Step> lead;  // innermost first
  bool elements = p.m > 0 && p.k > 0 && n.size > 0;
  for (int64_t d = before - 1; d >= 0; --d) {
    const Step step{a.x.size(d), a.y.stride(d), a.x.stride(d)};
    elements = elements && step.size > 0;
    if (!fold(lead.empty() ? n : lead.back(), step)) lead.push_back(step);
  }
  if (!elements) {
    n.size = 0;
    lead.clear();
  }
  const auto c = dense_layout(p.m, n.size, a.x.stride(before), n.c);
  const auto b = dense_layout(p.k, n.size, a.y.stride(last), n.b);
  if (!c || !b || lead.size() > 1) {  // copied, as torch's own matmul would
    SampledArguments copied = a;
    if (!c || lead.size() > 1) copied.x = in_one_piece(a.x);
    if (!b || lead.size() > 1) copied.y = in_one_piece(a.y);
    const bool copies = copied.x.get() != a.x.get() || copied.y.get() != a.y.get();
    expect(copies, "the strides of x and y contradict each other");
    return bind_operands(copied, result);
  }
  p.n = n.size;
  p.batch = lead.empty() ? 1 : lead.front().size;
  p.b_batch_stride = lead.empty() ? 0 : lead.front().b;
  p.c_batch_stride = lead.empty() ? 0 : lead.front().c;
  set_layouts(&p, *b, *c);

  const Tensor crow = in_one_piece(a.crow_indices), col = in_one_piece(a.col_indices);
  product.kept_alive = {result, crow, col, a.x, a.y};
  Launch& l = product.launch;
  l.crow_indices = crow.data_ptr();
  l.col_indices = col.data_ptr();
  l.b = a.y.data_ptr();
  l.c = a.x.data_ptr();
  l.sampled = result.data_ptr();
  set_alignments(&p, l.sampled, l.b, l.c);

  product.pattern = pattern_key(crow, col, a.rows / p.block_m, a.cols / p.block_k);
  return product;
}

}  // namespace

Tensor make_sampled_result(const SampledArguments& a) {
  check_operands(a);
  const std::array<int64_t, 3> sizes = {a.col_indices.size(0), a.block_m, a.block_k};
  const std::array<int64_t, 3> strides = {a.block_m * a.block_k, a.block_k, 1};
  return empty_strided(a.x, sizes.data(), strides.data(), 3);
}

std::optional<Bound> bind_sampled(const SampledArguments& a, const Tensor& result,
                                  std::shared_ptr<Plan> known) {
  Product product = bind_operands(a, result);
  if (is_empty(product.problem)) {
    Tensor zeros = result;
    torch::stable::zero_(zeros);
    return std::nullopt;
  }
  Bound bound = bind_to_plan(std::move(product), true, std::move(known));
  if (bound.product.problem.nnzb == 0) return std::nullopt;
  return bound;
}

Bound bind_sampled_for_questions(const SampledArguments& a, const Tensor& result) {
  Product product = bind_operands(a, result);
  const bool launches = !is_empty(product.problem) && product.problem.nnzb > 0;
  return bind_to_plan(std::move(product), launches);
}

}  // namespace sparse_autotune
