#include "ops/attention_calls.h"

#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "calls/attention_call.h"
#include "calls/attention_problem.h"
#include "ops/handed_over.h"
#include "ops/torch_runtime.h"

namespace sparse_autotune {
namespace {

void make_rows_contiguous(Tensor& t) {
  const TensorView view = view_of(t);
  if (view.dims == 4 && view.sizes[3] > 1 && view.strides[3] != 1) t = torch::stable::contiguous(t);
}
void make_contiguous(Tensor& t) {
  if (!t.is_contiguous()) t = torch::stable::contiguous(t);
}
void make_contiguous(std::optional<Tensor>& t) {
  if (t.has_value()) make_contiguous(*t);
}

// As results are of an operand that lies so (attention::dense_like).
Tensor new_like(const Tensor& operand) {
  const TensorView v = view_of(operand);
  const bool rows_first = v.strides[1] < v.strides[2];
  std::vector<int64_t> sizes(v.sizes, v.sizes + 4);
  if (rows_first) std::swap(sizes[1], sizes[2]);
  const Tensor made = new_contiguous(operand, sizes, v.type);
  return rows_first ? torch::stable::transpose(made, 1, 2) : made;
}

// What kernels read where it lies.
AttentionArguments readable(AttentionArguments a) {
  for (Tensor* t : {&a.q, &a.k, &a.v}) make_rows_contiguous(*t);
  make_contiguous(a.crow_indices);
  make_contiguous(a.col_indices);
  return a;
}
AttentionGradientArguments readable(AttentionGradientArguments g, const AttentionArguments& a) {
  make_rows_contiguous(g.grad_out);
  const TensorView out = view_of(g.out), q = view_of(a.q);
  // What is wrong with another one the rules say.
  const bool fits = same_shape(out, q) && out.type == q.type && out.device == q.device;
  if (fits && !lies_as_result_of(q, out)) {
    const Tensor moved = new_like(a.q);
    call_torch<Tensor>("aten::copy_", "", moved, g.out, false);
    g.out = moved;
  }
  make_contiguous(g.lse);
  make_contiguous(g.grad_lse);
  make_contiguous(g.ccol_indices);
  make_contiguous(g.row_indices);
  return g;
}

std::optional<TensorView> optional_view_of(const std::optional<Tensor>& t) {
  if (!t.has_value()) return std::nullopt;
  return view_of(*t);
}

AttentionCall call_of(const AttentionArguments& a) {
  return {.q = view_of(a.q),
          .k = view_of(a.k),
          .v = view_of(a.v),
          .crow_indices = optional_view_of(a.crow_indices),
          .col_indices = optional_view_of(a.col_indices),
          .block_m = a.block_m,
          .block_n = a.block_n,
          .is_causal = a.is_causal,
          .scale = a.scale,
          .nnzb = a.nnzb,
          .allow_tf32 = a.allow_tf32,
          .deterministic = a.deterministic};
}
AttentionGradients gradients_of(const AttentionGradientArguments& g) {
  return {.dout = view_of(g.grad_out),
          .out = view_of(g.out),
          .lse = view_of(g.lse),
          .dlse = optional_view_of(g.grad_lse),
          .ccol_indices = optional_view_of(g.ccol_indices),
          .row_indices = optional_view_of(g.row_indices)};
}

void fill(const Tensor& t, double value) { torch::stable::fill_(t, value); }

AttentionBound bound_on(const AttentionCall& call, const AttentionGradients* gradients) {
  void* const stream = call.q.device == kCpuDevice ? nullptr : current_stream(call.q.device);
  const Parallel parallel = call.q.device == kCpuDevice ? torch_parallel() : Parallel{};
  return bind_attention(call, gradients, stream, parallel);
}

// Memory of torch's allocator, until the call is over: its stream orders what comes after.
class Scratch {
 public:
  explicit Scratch(const Tensor& like) : like_(like) {}
  void* operator()(int64_t bytes) {
    allocated_.push_back(new_bytes(like_, bytes));
    return allocated_.back().data_ptr();
  }

 private:
  const Tensor& like_;
  std::vector<Tensor> allocated_;
};

// What the variant hands over takes the place of the launch's own results.
attention::HandedOver serve_with_torch(AttentionBound& bound, const AttentionArguments& a) {
  Scratch scratch(a.q);
  attention::HandedOver own;
  bound.launch.handed_over = &own;
  serve(bound, a.variant, [&](int64_t bytes) { return scratch(bytes); });
  return own;
}

std::string answer(AttentionBound bound, const RaceOrder& order) {
  if (order.dry_run) return legality_of(bound.problem, *bound.device);
  if (bound.is_empty()) return "";
  return race_attention(bound, order);
}

}  // namespace

std::tuple<Tensor, Tensor> compute(const AttentionArguments& given) {
  const AttentionArguments a = readable(given);
  const AttentionCall call = call_of(a);
  if (const char* rule = broken_rule(call)) refuse(rule);
  const DeviceScope scope(a.q);
  AttentionBound bound = bound_on(call, nullptr);
  const Tensor out = new_like(a.q);
  const Tensor lse = new_contiguous(a.q, {call.q.sizes, call.q.sizes + 3}, type_of_lse(call));
  if (bound.is_empty()) {
    fill(out, 0);
    fill(lse, -std::numeric_limits<double>::infinity());
    return {out, lse};
  }
  bound.launch.out = view_of(out).writable();
  bound.launch.lse = view_of(lse).writable();
  const attention::HandedOver own = serve_with_torch(bound, a);
  return {own.results[0].value_or(out), own.results[1].value_or(lse)};
}

std::tuple<Tensor, Tensor, Tensor> compute(const AttentionArguments& given,
                                           const AttentionGradientArguments& gradients) {
  const AttentionArguments a = readable(given);
  const AttentionGradientArguments g = readable(gradients, a);
  const AttentionCall call = call_of(a);
  const AttentionGradients views = gradients_of(g);
  if (const char* rule = broken_rule(call, views)) refuse(rule);
  const DeviceScope scope(a.q);
  AttentionBound bound = bound_on(call, &views);
  const Tensor dq = new_like(a.q), dk = new_like(a.k), dv = new_like(a.v);
  if (bound.is_empty()) {
    for (const Tensor* t : {&dq, &dk, &dv}) fill(*t, 0);
    return {dq, dk, dv};
  }
  bound.launch.dq = view_of(dq).writable();
  bound.launch.dk = view_of(dk).writable();
  bound.launch.dv = view_of(dv).writable();
  const attention::HandedOver own = serve_with_torch(bound, a);
  return {own.results[0].value_or(dq), own.results[1].value_or(dk), own.results[2].value_or(dv)};
}

std::string race_text(const AttentionArguments& given, const RaceOrder& order) {
  const AttentionArguments a = readable(given);
  const AttentionCall call = call_of(a);
  if (const char* rule = broken_rule(call)) refuse(rule);
  const DeviceScope scope(a.q);
  return answer(bound_on(call, nullptr), order);
}

std::string race_text(const AttentionArguments& given, const AttentionGradientArguments& gradients,
                      const RaceOrder& order) {
  const AttentionArguments a = readable(given);
  const AttentionGradientArguments g = readable(gradients, a);
  const AttentionCall call = call_of(a);
  const AttentionGradients views = gradients_of(g);
  if (const char* rule = broken_rule(call, views)) refuse(rule);
  const DeviceScope scope(a.q);
  return answer(bound_on(call, &views), order);
}

std::string race_text(const std::string& problem, const AttentionMaskArguments& mask,
                      const std::string& selector) {
  const AttentionPattern pattern{view_of(mask.crow_indices), view_of(mask.col_indices),
                                 optional_view_of(mask.ccol_indices),
                                 optional_view_of(mask.row_indices)};
  const DeviceScope scope(mask.crow_indices);
  const int32_t device = pattern.crow_indices.device;
  void* const stream = device >= 0 ? current_stream(device) : nullptr;
  const Parallel parallel = device == kCpuDevice ? torch_parallel() : Parallel{};
  return race_attention_problem(problem, pattern, selector, stream, parallel);
}

}  // namespace sparse_autotune
