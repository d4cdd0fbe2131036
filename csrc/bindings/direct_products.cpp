#include "bindings/direct.h"

#include <utility>

namespace py = pybind11;

namespace sparse_autotune {
namespace {

// What the operators of products begin with; sampled ones with the first two.
enum {
  kCrow,
  kCol,
  kValues,
  kRows,
  kCols,
  kDense,
  kSecondDense,
  kSparseRight,
  kTranspose,
  kActivation,
  kFrozen,
  kAllowTf32,
  kDeterministic,
  kVariant,
  kOut
};

}  // namespace

bool Direct::read_versions(const Values& v, direct::Circumstances* here) const {
  return tensors_.read_version(v[kCrow], &here->versions[0]) &&
         tensors_.read_version(v[kCol], &here->versions[1]);
}

bool Direct::read_product(const Values& v, MatmulCall* call, direct::Circumstances* here) const {
  if (v[kActivation] != nullptr && !read(v[kActivation], &call->activation)) return false;
  call->sparse_right = v[kSparseRight] == Py_True;
  call->transpose = v[kTranspose] == Py_True;
  call->frozen = v[kFrozen] == Py_True;
  call->allow_tf32 = v[kAllowTf32] == Py_True;
  call->deterministic = v[kDeterministic] == Py_True;
  return is_given(v[kValues]) && is_given(v[kDense]) &&
         tensors_.view(v[kCrow], &call->crow_indices) &&
         tensors_.view(v[kCol], &call->col_indices) && tensors_.view(v[kValues], &call->values) &&
         read(v[kRows], &call->rows) && read(v[kCols], &call->cols) &&
         tensors_.view(v[kDense], &call->dense) && read_versions(v, here);
}

py::object Direct::new_result(const MatmulCall& call, TensorView* written) const {
  py::object result = tensors_.new_empty(call.dense, call.result_sizes());
  return tensors_.view(result, written) ? result : py::object();
}

py::object Direct::matmul(const Values& v) const {
  PyObject *const bias = v[kSecondDense], *const out = v[kOut];
  if (!is_for_us({v[kCrow], v[kCol]}, {v[kValues], v[kDense], bias, out})) return {};
  MatmulCall call{};
  direct::Circumstances here;
  if (is_given(bias)) {
    call.bias.emplace();
    if (!tensors_.view(bias, &*call.bias)) return {};
  }
  if (!read_product(v, &call, &here) || !read_variant(v[kVariant], &here) ||
      broken_rule(call) != nullptr) {
    return {};
  }
  py::object result;
  TensorView written;
  if (is_given(out)) {
    result = py::reinterpret_borrow<py::object>(out);
    if (tensors_.is_inference(result) || !tensors_.view(result, &written) ||
        broken_rule_of_result(call, written) != nullptr) {
      return {};
    }
  } else {
    result = new_result(call, &written);
  }
  if (!result) return {};
  const auto launch = [&] { return direct::matmul(call, written, here); };
  return launched(call.values, &here, launch) ? result : py::object();
}

py::object Direct::sampled_matmul(const Values& v) const {
  enum { kSampledRows = 2, kSampledCols, kBlockM, kBlockK, kX, kY, kTf32, kRepeatable, kName };
  if (!is_for_us({v[kCrow], v[kCol]}, {v[kX], v[kY]})) return {};
  SampledCall call{};
  PatternCall& p = call.pattern;
  direct::Circumstances here;
  if (!tensors_.view(v[kCrow], &p.crow_indices) || !tensors_.view(v[kCol], &p.col_indices) ||
      !read(v[kSampledRows], &p.rows) || !read(v[kSampledCols], &p.cols) ||
      !read(v[kBlockM], &p.block_m) || !read(v[kBlockK], &p.block_k) ||
      !tensors_.view(v[kX], &call.x) || !tensors_.view(v[kY], &call.y) ||
      !read_versions(v, &here) || !read_variant(v[kName], &here)) {
    return {};
  }
  call.allow_tf32 = v[kTf32] == Py_True;
  call.deterministic = v[kRepeatable] == Py_True;
  if (broken_rule(call) != nullptr) return {};
  TensorView blocks;
  py::object result = tensors_.new_empty(call.x, call.result_sizes());
  if (!tensors_.view(result, &blocks)) return {};
  const auto launch = [&] { return direct::sampled_matmul(call, blocks, here); };
  return launched(call.x, &here, launch) ? result : py::object();
}

py::object Direct::gradients(const Values& v) const {
  enum { kGrad = kSecondDense };
  if (!is_for_us({v[kCrow], v[kCol]}, {v[kValues], v[kDense], v[kGrad]})) return {};
  MatmulCall forward{};
  TensorView grad, written, blocks;
  direct::Circumstances here;
  if (!read_product(v, &forward, &here) || broken_rule(forward) != nullptr ||
      !tensors_.view(v[kGrad], &grad) || grad.dims != forward.dense.dims) {
    return {};
  }
  const GradientCalls calls(forward, grad);
  if (broken_rule(calls.of_dense) != nullptr || broken_rule(calls.of_values) != nullptr) {
    return {};
  }
  py::object grad_dense = new_result(calls.of_dense, &written);
  const TensorView& values = forward.values;
  py::object grad_values = tensors_.new_empty(values, {values.sizes, values.sizes + values.dims});
  if (!grad_dense || !tensors_.view(grad_values, &blocks)) return {};
  const auto launch = [&] { return direct::gradients(calls, written, blocks, here); };
  if (!launched(values, &here, launch)) return {};
  return py::make_tuple(std::move(grad_dense), std::move(grad_values));
}

}  // namespace sparse_autotune
