#include "ops/arguments.h"

#include <torch/csrc/stable/ops.h>

namespace sparse_autotune {
namespace {

// Sharding takes a tensor's memory away while it is not needed; views of it begin at their offset.
bool has_memory(const Tensor& tensor) {
  const auto begin = reinterpret_cast<uintptr_t>(tensor.data_ptr());
  return begin != static_cast<uintptr_t>(tensor.storage_offset()) * tensor.element_size();
}

void make_contiguous(Tensor& tensor) {
  if (!tensor.is_contiguous()) tensor = torch::stable::contiguous(tensor);
}

}  // namespace

TensorView view_of(const Tensor& t) {
  if (!t.defined()) refuse("an argument must be a tensor");  // Python's None comes as one undefined
  return {.data = has_memory(t) ? t.data_ptr() : nullptr,
          .sizes = t.sizes().data(),
          .strides = t.strides().data(),
          .dims = t.dim(),
          .type = element_type(t),
          .device = t.is_cpu()    ? kCpuDevice
                    : t.is_cuda() ? t.get_device_index()
                                  : kOtherDevice};
}

MatmulCall checked_call(const MatmulArguments& a) {
  MatmulCall call{.crow_indices = view_of(a.crow_indices),
                  .col_indices = view_of(a.col_indices),
                  .values = view_of(a.values),
                  .rows = a.rows,
                  .cols = a.cols,
                  .dense = view_of(a.dense),
                  .bias = std::nullopt,
                  .sparse_right = a.sparse_right,
                  .transpose = a.transpose,
                  .activation = a.activation,
                  .frozen = a.frozen,
                  .allow_tf32 = a.allow_tf32,
                  .deterministic = a.deterministic};
  if (a.bias.has_value()) call.bias = view_of(*a.bias);
  if (const char* rule = broken_rule(call)) refuse(rule);
  return call;
}

SampledCall checked_call(const SampledArguments& a) {
  const SampledCall call{.pattern = {.crow_indices = view_of(a.crow_indices),
                                     .col_indices = view_of(a.col_indices),
                                     .rows = a.rows,
                                     .cols = a.cols,
                                     .block_m = a.block_m,
                                     .block_k = a.block_k},
                         .x = view_of(a.x),
                         .y = view_of(a.y),
                         .allow_tf32 = a.allow_tf32,
                         .deterministic = a.deterministic};
  if (const char* rule = broken_rule(call)) refuse(rule);
  return call;
}

MatmulArguments contiguous(MatmulArguments a, const Copies& copies) {
  if (copies.components) {
    for (Tensor* t : {&a.crow_indices, &a.col_indices, &a.values}) make_contiguous(*t);
    if (a.bias.has_value()) make_contiguous(*a.bias);
  }
  if (copies.b) make_contiguous(a.dense);
  return a;
}

SampledArguments contiguous(SampledArguments a, const Copies& copies) {
  if (copies.components) {
    make_contiguous(a.crow_indices);
    make_contiguous(a.col_indices);
  }
  if (copies.b) make_contiguous(a.y);
  if (copies.c) make_contiguous(a.x);
  return a;
}

}  // namespace sparse_autotune
