#include "bindings/direct.h"

#include <utility>

namespace py = pybind11;

namespace sparse_autotune {
namespace {

// Of a product's parameters: the components; the bias, or the result's gradient; the last one.
constexpr size_t kCrow = 0, kCol = 1, kValues = 2, kSecond = 6, kOut = 14;

}  // namespace

bool Direct::read_versions(PyObject* crow, PyObject* col, direct::Circumstances* here) const {
  return tensors_.read_version(crow, &here->versions[0]) &&
         tensors_.read_version(col, &here->versions[1]);
}

bool Direct::read_product(const Values& v, MatmulCall* call, direct::Circumstances* here) const {
  const auto& [crow, col, values, rows, cols, dense, second, sparse_right, transpose, activation,
               frozen, allow_tf32, deterministic, variant, out, unused, unused_too] = v;
  if (!is_for_us({crow, col}, {values, dense, second, out})) return false;
  if (activation != nullptr && !read(activation, &call->activation)) return false;
  call->sparse_right = sparse_right == Py_True;
  call->transpose = transpose == Py_True;
  call->frozen = frozen == Py_True;
  call->allow_tf32 = allow_tf32 == Py_True;
  call->deterministic = deterministic == Py_True;
  return tensors_.view(crow, &call->crow_indices) && tensors_.view(col, &call->col_indices) &&
         tensors_.view(values, &call->values) && read(rows, &call->rows) &&
         read(cols, &call->cols) && tensors_.view(dense, &call->dense) &&
         read_versions(crow, col, here) && read_variant(variant, here);
}

bool Direct::is_matrix(py::handle crow, py::handle col, py::handle values, py::handle rows,
                       py::handle cols) const {
  PatternCall pattern{};
  TensorView blocks;
  for (const py::handle tensor : {crow, col, values}) {
    if (!tensors_.is_plain(tensor)) return false;
  }
  if (!tensors_.view(crow, &pattern.crow_indices) || !tensors_.view(col, &pattern.col_indices) ||
      !tensors_.view(values, &blocks) || !read(rows.ptr(), &pattern.rows) ||
      !read(cols.ptr(), &pattern.cols) || blocks.dims != 3) {
    return false;
  }
  const TensorView &begins = pattern.crow_indices, &columns = pattern.col_indices;
  pattern.block_m = blocks.sizes[1];
  pattern.block_k = blocks.sizes[2];
  return broken_rule(pattern) == nullptr && value_type(blocks.type) &&
         blocks.device == begins.device && blocks.sizes[0] == columns.sizes[0] &&
         is_contiguous(begins) && is_contiguous(columns) && is_contiguous(blocks);
}

py::object Direct::new_result(const MatmulCall& call, TensorView* written) const {
  py::object result = tensors_.new_empty(call.dense, call.result_sizes());
  return tensors_.view(result, written) ? result : py::object();
}

py::object Direct::matmul(const Values& v) const {
  PyObject *const bias = v[kSecond], *const out = v[kOut];
  MatmulCall call{};
  direct::Circumstances here;
  if (!read_product(v, &call, &here)) return {};
  if (is_given(bias) && !tensors_.view(bias, &call.bias.emplace())) return {};
  if (broken_rule(call) != nullptr) return {};
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
  const auto handles = [&] { return new_handles(v[kCrow], v[kCol], v[kValues]); };
  here.handles = std::cref(handles);
  const auto launch = [&] { return direct::matmul(call, written, here); };
  return launched(call.values, &here, launch) ? result : py::object();
}

py::object Direct::sampled_matmul(const Values& v) const {
  enum { kRows = 2, kCols, kBlockM, kBlockK, kX, kY, kTf32, kRepeatable, kName };
  if (!is_for_us({v[kCrow], v[kCol]}, {v[kX], v[kY]})) return {};
  SampledCall call{};
  PatternCall& p = call.pattern;
  direct::Circumstances here;
  if (!tensors_.view(v[kCrow], &p.crow_indices) || !tensors_.view(v[kCol], &p.col_indices) ||
      !read(v[kRows], &p.rows) || !read(v[kCols], &p.cols) || !read(v[kBlockM], &p.block_m) ||
      !read(v[kBlockK], &p.block_k) || !tensors_.view(v[kX], &call.x) ||
      !tensors_.view(v[kY], &call.y) || !read_versions(v[kCrow], v[kCol], &here) ||
      !read_variant(v[kName], &here)) {
    return {};
  }
  call.allow_tf32 = v[kTf32] == Py_True;
  call.deterministic = v[kRepeatable] == Py_True;
  if (broken_rule(call) != nullptr) return {};
  TensorView blocks;
  py::object result = tensors_.new_empty(call.x, call.result_sizes());
  if (!tensors_.view(result, &blocks)) return {};
  const auto handles = [&] { return new_handles(v[kCrow], v[kCol], v[kX]); };
  here.handles = std::cref(handles);
  const auto launch = [&] { return direct::sampled_matmul(call, blocks, here); };
  return launched(call.x, &here, launch) ? result : py::object();
}

py::object Direct::gradients(const Values& v) const {
  MatmulCall forward{};
  TensorView grad, written, blocks;
  direct::Circumstances here;
  if (!read_product(v, &forward, &here) || broken_rule(forward) != nullptr ||
      !tensors_.view(v[kSecond], &grad) || grad.dims != forward.dense.dims) {
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
