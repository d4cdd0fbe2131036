#include "calls/call.h"

#include <algorithm>

#include "autotune/settings.h"

namespace sparse_autotune {
namespace {

// Returns the rule from the function that it stands in unless it holds.
#define SPARSE_AUTOTUNE_RULE(holds, rule) \
  if (!(holds)) return rule

// Columns and batch of a product, or the terms of a sampled one, from the dimensions that both
// dense operands share: `b` and `c` are walked together.
struct Folded {
  Step n;
  std::vector<Step> lead;           // what folds into no inner dimension, innermost first
  std::optional<DenseLayout> b, c;  // of matrices of n columns; none where no kernel reads them
};

// `n` are the innermost columns, `lead` the number of dimensions before them; B is p.k x n and C is
// p.m x n, with these strides between rows. n and the batch become those of the problem.
Folded fold_dense(const TensorView& b, const TensorView& c, Step n, int64_t lead, int64_t b_rows,
                  int64_t c_rows, Problem* p) {
  Folded f{.n = n, .lead = {}, .b = {}, .c = {}};
  // Those of one column each, which is strided, are no matrix together.
  const auto lay_out = [&](const Step& n) {
    f.b = dense_layout(p->k, n.size, b_rows, n.b);
    f.c = dense_layout(p->m, n.size, c_rows, n.c);
    return f.b && f.c;
  };
  bool elements = n.size > 0;
  for (int64_t d = lead - 1; d >= 0; --d) {
    const Step step{b.sizes[d], b.strides[d], c.strides[d]};
    elements = elements && step.size > 0;
    Step& inner = f.lead.empty() ? f.n : f.lead.back();
    Step whole = inner;
    if (fold(whole, step) && (step.size == 1 || !f.lead.empty() || lay_out(whole))) {
      inner = whole;
    } else {
      f.lead.push_back(step);
    }
  }
  if (!elements) {  // as one without columns
    f.n.size = 0;
    f.lead.clear();
  }
  lay_out(f.n);
  p->n = f.n.size;
  p->batch = f.lead.empty() ? 1 : f.lead.front().size;
  p->b_batch_stride = f.lead.empty() ? 0 : f.lead.front().b;
  p->c_batch_stride = f.lead.empty() ? 0 : f.lead.front().c;
  return f;
}

// What products and sampled products share.
void set_common(const PatternCall& pattern, ElementType type, bool allow_tf32, bool deterministic,
                NormalisedCall* out) {
  Problem& p = out->problem;
  p.device = pattern.crow_indices.device == kCpuDevice ? DeviceType::kCpu : DeviceType::kCuda;
  p.dtype = *value_type(type);
  p.index_type = *index_type(pattern.crow_indices.type);
  p.nnzb = pattern.col_indices.sizes[0];
  p.allow_tf32 = allow_tf32 && p.dtype == DType::kFloat32;
  p.deterministic = deterministic;
  p.exact_nonfinite = exact_nonfinite();
  p.longest_row = -1;
  out->pattern = key_of(pattern);
  out->launch.crow_indices = pattern.crow_indices.data;
  out->launch.col_indices = pattern.col_indices.data;
}

}  // namespace

void refuse(const std::string& text, Fault fault) {
  throw Refusal("sparse_autotune: " + text, fault);
}

PatternKey key_of(const PatternCall& a) {
  return {.crow_indices = a.crow_indices.data,
          .col_indices = a.col_indices.data,
          .nnzb = a.col_indices.sizes[0],
          .block_rows = a.rows / a.block_m,
          .block_cols = a.cols / a.block_k,
          .ordinal = a.crow_indices.device,
          .index_type = *index_type(a.crow_indices.type)};
}

const char* broken_rule(const PatternCall& a) {
  SPARSE_AUTOTUNE_RULE(a.crow_indices.dims == 1 && a.col_indices.dims == 1,
                       "indices must be vectors");
  SPARSE_AUTOTUNE_RULE(a.block_m > 0 && a.block_k > 0,
                       "a block must have at least one row and one column");
  SPARSE_AUTOTUNE_RULE(a.rows >= 0 && a.rows % a.block_m == 0,
                       "block_m must divide the rows of the matrix");
  SPARSE_AUTOTUNE_RULE(a.cols >= 0 && a.cols % a.block_k == 0,
                       "block_k must divide the columns of the matrix");
  SPARSE_AUTOTUNE_RULE(a.crow_indices.sizes[0] == a.rows / a.block_m + 1,
                       "crow_indices must have one entry more than there are block rows");
  // Without block rows nobody looks at the columns, which those of a transpose are counted by.
  SPARSE_AUTOTUNE_RULE((a.rows > 0 && a.cols > 0) || a.col_indices.sizes[0] == 0,
                       "a matrix without elements has no block");
  SPARSE_AUTOTUNE_RULE(index_type(a.crow_indices.type), "indices must be int32 or int64");
  SPARSE_AUTOTUNE_RULE(a.crow_indices.device != kOtherDevice,
                       "tensors must be on the CPU or on a CUDA device");
  SPARSE_AUTOTUNE_RULE(alike(a.crow_indices, a.col_indices),
                       "indices must share one dtype and device");
  SPARSE_AUTOTUNE_RULE(has_memory(a.crow_indices), "the memory of crow_indices is not allocated");
  SPARSE_AUTOTUNE_RULE(has_memory(a.col_indices), "the memory of col_indices is not allocated");
  return nullptr;
}

const char* broken_rule(const MatmulCall& a) {
  SPARSE_AUTOTUNE_RULE(a.values.dims == 3, "values must have shape (nnzb, block_m, block_k)");
  if (const char* rule = broken_rule(a.pattern())) return rule;
  SPARSE_AUTOTUNE_RULE(a.col_indices.sizes[0] == a.values.sizes[0],
                       "col_indices and values must agree on nnzb");
  SPARSE_AUTOTUNE_RULE(a.dense.dims >= 1, "dense must have at least one dimension");
  SPARSE_AUTOTUNE_RULE(
      a.values.device == a.crow_indices.device && a.values.device == a.dense.device,
      "all tensors must be on one device");
  SPARSE_AUTOTUNE_RULE(value_type(a.values.type),
                       "values must be float16, bfloat16, float32 or float64");
  SPARSE_AUTOTUNE_RULE(a.values.type == a.dense.type, "values and dense must share one dtype");
  SPARSE_AUTOTUNE_RULE(a.activation >= 0 && a.activation <= static_cast<int64_t>(Activation::kSilu),
                       "activation must be one of 0 to 4");
  SPARSE_AUTOTUNE_RULE(has_memory(a.values), "the memory of values is not allocated");
  SPARSE_AUTOTUNE_RULE(has_memory(a.dense), "the memory of dense is not allocated");
  SPARSE_AUTOTUNE_RULE(a.dense.sizes[a.inner()] == (a.transposed() ? a.rows : a.cols),
                       "the inner dimensions of the product must agree");
  if (a.bias) {
    SPARSE_AUTOTUNE_RULE(a.bias->dims == 1 && a.bias->sizes[0] == a.result_size(),
                         "bias must have one value per row of the product");
    SPARSE_AUTOTUNE_RULE(alike(a.values, *a.bias), "bias must have the device and dtype of values");
    SPARSE_AUTOTUNE_RULE(has_memory(*a.bias), "the memory of bias is not allocated");
  }
  return nullptr;
}

const char* broken_rule(const SampledCall& a) {
  if (const char* rule = broken_rule(a.pattern)) return rule;
  SPARSE_AUTOTUNE_RULE(a.x.device == a.pattern.crow_indices.device && a.x.device == a.y.device,
                       "all tensors must be on one device");
  SPARSE_AUTOTUNE_RULE(value_type(a.x.type), "x must be float16, bfloat16, float32 or float64");
  SPARSE_AUTOTUNE_RULE(a.x.type == a.y.type, "x and y must share one dtype");
  const int64_t dims = a.x.dims;
  SPARSE_AUTOTUNE_RULE(dims >= 2 && a.y.dims == dims,
                       "x and y must be matrices, or batches of equal shape");
  SPARSE_AUTOTUNE_RULE(std::equal(a.x.sizes, a.x.sizes + dims - 2, a.y.sizes),
                       "the leading dimensions of x and y must be equal");
  SPARSE_AUTOTUNE_RULE(has_memory(a.x), "the memory of x is not allocated");
  SPARSE_AUTOTUNE_RULE(has_memory(a.y), "the memory of y is not allocated");
  SPARSE_AUTOTUNE_RULE(a.x.sizes[dims - 2] == a.pattern.rows,
                       "x must have the rows of the pattern");
  SPARSE_AUTOTUNE_RULE(a.y.sizes[dims - 1] == a.pattern.cols,
                       "y must have the columns of the pattern");
  SPARSE_AUTOTUNE_RULE(a.x.sizes[dims - 1] == a.y.sizes[dims - 2],
                       "the inner dimensions of x and y must agree");
  return nullptr;
}

const char* broken_rule_of_result(const MatmulCall& a, const TensorView& result) {
  bool same = result.dims == a.dense.dims;
  for (int64_t d = 0; same && d < result.dims; ++d) {
    same = result.sizes[d] == (d == a.inner() ? a.result_size() : a.dense.sizes[d]);
  }
  SPARSE_AUTOTUNE_RULE(same, "out must have the shape of the product; it is never resized");
  SPARSE_AUTOTUNE_RULE(alike(a.values, result), "out must have the device and dtype of values");
  if (elements_of(result) == 0) return nullptr;  // nothing is written
  SPARSE_AUTOTUNE_RULE(has_memory(result), "the memory of out is not allocated");
  // Its elements must be apart: sorted by stride, each dimension steps over those below.
  std::vector<std::pair<int64_t, int64_t>> steps;
  for (int64_t d = 0; d < result.dims; ++d) {
    if (result.sizes[d] > 1) steps.emplace_back(result.strides[d], result.sizes[d]);
  }
  std::sort(steps.begin(), steps.end());
  int64_t reach = 1;
  for (const auto& [stride, size] : steps) {
    SPARSE_AUTOTUNE_RULE(stride >= reach, "out must not overlap itself");
    reach += stride * (size - 1);
  }
  for (const TensorView* input : {&a.crow_indices, &a.col_indices, &a.values, &a.dense}) {
    SPARSE_AUTOTUNE_RULE(!overlap(result, *input), "out must not overlap an input");
  }
  SPARSE_AUTOTUNE_RULE(!a.bias || !overlap(result, *a.bias), "out must not overlap an input");
  return nullptr;
}

SwappedView::SwappedView(const TensorView& of, bool swap)
    : view(of), sizes(of.sizes, of.sizes + of.dims), strides(of.strides, of.strides + of.dims) {
  if (of.dims == 1) {  // a vector: one column, or with `swap` one row
    sizes.insert(swap ? sizes.begin() : sizes.end(), 1);
    strides.insert(swap ? strides.begin() : strides.end(), 0);
    view.dims = 2;
  } else if (swap) {
    std::swap(sizes[of.dims - 1], sizes[of.dims - 2]);
    std::swap(strides[of.dims - 1], strides[of.dims - 2]);
  }
  view.sizes = sizes.data();
  view.strides = strides.data();
}

// The gradient of the values is left @ right at the stored blocks: left has A's rows, right its
// columns. A vector is a column on the left and a row on the right.
GradientCalls::GradientCalls(const MatmulCall& forward, const TensorView& grad)
    : of_dense(forward),
      left_(forward.transposed() ? forward.dense : grad,
            forward.dense.dims > 1 && forward.sparse_right),
      right_(forward.transposed() ? grad : forward.dense,
             forward.dense.dims == 1 || !forward.sparse_right) {
  of_dense.dense = grad;
  of_dense.bias.reset();
  of_dense.transpose = !forward.transpose;
  of_dense.activation = 0;
  of_values = {.pattern = forward.pattern(),
               .x = left_.view,
               .y = right_.view,
               .allow_tf32 = forward.allow_tf32,
               .deterministic = forward.deterministic};
}

Copies normalise(const MatmulCall& a, const TensorView& result, NormalisedCall* out) {
  const int64_t inner = a.inner(), other = 2 * a.dense.dims - 3 - inner;
  const bool vector = a.dense.dims == 1;
  Problem& p = out->problem;
  p.op = Op::kMatmul;
  set_common(a.pattern(), a.values.type, a.allow_tf32, a.deterministic, out);
  p.transpose = a.transposed();
  p.m = p.transpose ? a.cols : a.rows;
  p.k = p.transpose ? a.rows : a.cols;
  p.block_m = a.values.sizes[p.transpose ? 2 : 1];
  p.block_k = a.values.sizes[p.transpose ? 1 : 2];
  p.activation = static_cast<Activation>(a.activation);
  p.frozen = a.frozen;
  p.has_bias = a.bias.has_value();

  const Step n = vector ? Step{1, 0, 0}
                        : Step{a.dense.sizes[other], a.dense.strides[other], result.strides[other]};
  const Folded folded = fold_dense(a.dense, result, n, vector ? 0 : a.dense.dims - 2,
                                   a.dense.strides[inner], result.strides[inner], &p);
  const Copies copies{.components = !is_contiguous(a.crow_indices) ||
                                    !is_contiguous(a.col_indices) || !is_contiguous(a.values) ||
                                    (a.bias && !is_contiguous(*a.bias)),
                      .b = !folded.b,
                      .c = !folded.c};
  if (copies.any()) return copies;
  set_layouts(&p, *folded.b, *folded.c);

  Launch& l = out->launch;
  l.values = a.values.data;
  l.b = a.dense.data;
  l.c = result.writable();
  if (a.bias) l.bias = a.bias->data;
  set_alignments(&p, l.values, l.b, l.c);
  const int64_t item = size_of(p.dtype);
  for (size_t i = 1; i < folded.lead.size(); ++i) {
    const Step& step = folded.lead[i];
    out->outer.push_back(step);
    p.b_alignment = std::min(p.b_alignment, alignment_of(nullptr, step.b, 0, item));
    p.c_alignment = std::min(p.c_alignment, alignment_of(nullptr, step.c, 0, item));
  }
  return copies;
}

// x is C and y is B^T of the product whose gradient this is. All leading dimensions are summed
// over, as n is: what steps alike in both operands is one.
Copies normalise(const SampledCall& a, const TensorView& result, NormalisedCall* out) {
  const int64_t last = a.x.dims - 1, before = last - 1;
  Problem& p = out->problem;
  p.op = Op::kSampled;
  set_common(a.pattern, a.x.type, a.allow_tf32, a.deterministic, out);
  p.m = a.pattern.rows;
  p.k = a.pattern.cols;
  p.block_m = a.pattern.block_m;
  p.block_k = a.pattern.block_k;

  const Step n{p.m > 0 && p.k > 0 ? a.x.sizes[last] : 0, a.y.strides[before], a.x.strides[last]};
  const Folded folded = fold_dense(a.y, a.x, n, before, a.y.strides[last], a.x.strides[before], &p);
  const bool scattered = folded.lead.size() > 1;
  const Copies copies{
      .components = !is_contiguous(a.pattern.crow_indices) || !is_contiguous(a.pattern.col_indices),
      .b = !folded.b || scattered,
      .c = !folded.c || scattered};
  if (copies.any()) return copies;
  set_layouts(&p, *folded.b, *folded.c);

  Launch& l = out->launch;
  l.b = a.y.data;
  l.c = const_cast<void*>(a.x.data);
  l.sampled = result.writable();
  set_alignments(&p, l.sampled, l.b, l.c);
  return copies;
}

#undef SPARSE_AUTOTUNE_RULE

}  // namespace sparse_autotune
