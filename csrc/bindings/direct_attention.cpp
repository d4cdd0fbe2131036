#include "bindings/direct.h"
#include "calls/attention_call.h"

namespace py = pybind11;

namespace sparse_autotune {
namespace {

bool read_scale(PyObject* scale, std::optional<double>* number) {
  if (!is_given(scale)) return true;
  if (!PyFloat_CheckExact(scale)) return false;
  *number = PyFloat_AS_DOUBLE(scale);
  return true;
}

// Blocks alone do not tell: the last ones may be cut off.
bool fits(PyObject* lengths, const AttentionCall& call) {
  if (!is_given(lengths)) return true;
  int64_t queries = 0, keys = 0;
  return PyTuple_CheckExact(lengths) && PyTuple_GET_SIZE(lengths) == 2 &&
         read(PyTuple_GET_ITEM(lengths, 0), &queries) &&
         read(PyTuple_GET_ITEM(lengths, 1), &keys) && queries == call.q.sizes[2] &&
         keys == call.k.sizes[2];
}

}  // namespace

py::object Direct::attention(const Values& v) const {
  enum {
    kQ,
    kK,
    kV,
    kMaskRows,
    kMaskCols,
    kBlockRows,
    kBlockCols,
    kCausal,
    kScale,
    kNnzb,
    kTf32,
    kRepeatable,
    kName,
    kLengths
  };
  if (!is_for_us({v[kMaskRows], v[kMaskCols]}, {v[kQ], v[kK], v[kV]})) return {};
  if (v[kCausal] != nullptr && !PyBool_Check(v[kCausal])) return {};
  AttentionCall call{};
  direct::Circumstances here;
  if (is_given(v[kMaskRows])) {
    call.crow_indices.emplace();
    call.col_indices.emplace();
    if (!tensors_.view(v[kMaskRows], &*call.crow_indices) ||
        !tensors_.view(v[kMaskCols], &*call.col_indices) || !read(v[kBlockRows], &call.block_m) ||
        !read(v[kBlockCols], &call.block_n)) {
      return {};
    }
  }
  call.nnzb = -1;
  call.is_causal = v[kCausal] == Py_True;
  call.allow_tf32 = v[kTf32] == Py_True;
  call.deterministic = v[kRepeatable] == Py_True;
  if (!tensors_.view(v[kQ], &call.q) || !tensors_.view(v[kK], &call.k) ||
      !tensors_.view(v[kV], &call.v) || !read_scale(v[kScale], &call.scale) ||
      (v[kNnzb] != nullptr && !read(v[kNnzb], &call.nnzb)) || !read_variant(v[kName], &here) ||
      broken_rule(call) != nullptr || !fits(v[kLengths], call)) {
    return {};
  }
  const int64_t* const sizes = call.q.sizes;
  py::object out = tensors_.new_empty(call.q, {sizes, sizes + 4});
  py::object lse = tensors_.new_empty(call.q, {sizes, sizes + 3}, type_of_lse(call));
  TensorView written, rows;
  if (!tensors_.view(out, &written) || !tensors_.view(lse, &rows)) return {};
  const auto launch = [&] { return direct::attention(call, written, rows, here); };
  if (!launched(call.q, &here, launch)) return {};
  return py::reinterpret_steal<py::object>(PyTuple_Pack(2, out.ptr(), lse.ptr()));
}

}  // namespace sparse_autotune
