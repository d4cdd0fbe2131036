#include "bindings/direct.h"
#include "calls/attention_call.h"

namespace py = pybind11;

namespace sparse_autotune {
namespace {

// In the order of attention's schema, and what follows: of a result (S, T), the lengths that its
// mask is of, and of gradients four tensors.
enum : size_t {
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
  kLengths,
  kGradOut = kLengths,
  kGradLse,
  kGivenOut,
  kGivenLse
};

bool read_scale(PyObject* scale, std::optional<double>* number) {
  if (!is_given(scale)) return true;
  if (PyFloat_CheckExact(scale)) {
    *number = PyFloat_AS_DOUBLE(scale);
    return true;
  }
  int64_t whole = 0;
  if (!read(scale, &whole)) return false;
  *number = static_cast<double>(whole);
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

py::object Direct::new_result_of(const TensorView& operand) const {
  const int64_t* const sizes = operand.sizes;
  const attention::TensorStrides s = attention::dense_like(
      {operand.strides[0], operand.strides[1], operand.strides[2]}, sizes[1], sizes[2], sizes[3]);
  return tensors_.new_empty(operand, {sizes, sizes + 4}, {s.batch, s.head, s.row, 1}, operand.type);
}

template <size_t kCount, typename Launch>
py::object Direct::attended(const AttentionCall& call, std::array<py::object, kCount>& results,
                            direct::Circumstances* here, Launch&& launch) const {
  direct::AttentionResults written;
  for (size_t i = 0; i < kCount; ++i) {
    if (!tensors_.view(results[i], &written.places[i])) return {};
  }
  if (!launched(call.q, here, [&] { return launch(&written); })) return {};
  py::tuple given(kCount);
  for (size_t i = 0; i < kCount; ++i) {
    if (written.own[i] == nullptr) {
      given[i] = std::move(results[i]);
    } else {
      const auto handles = checked(PyList_New(1));
      PyList_SET_ITEM(handles.ptr(), 0,
                      checked(PyCapsule_New(written.own[i], nullptr, nullptr)).release().ptr());
      const py::object adopted = checked(PyObject_CallOneArg(adopt_.ptr(), handles.ptr()));
      given[i] = py::reinterpret_borrow<py::object>(PyList_GET_ITEM(adopted.ptr(), 0));
    }
  }
  return given;
}

bool Direct::read_attention(const Values& v, AttentionCall* call,
                            direct::Circumstances* here) const {
  if (!is_for_us({v[kMaskRows], v[kMaskCols]}, {v[kQ], v[kK], v[kV]})) return false;
  if (v[kCausal] != nullptr && !PyBool_Check(v[kCausal])) return false;
  if (is_given(v[kMaskRows])) {
    call->crow_indices.emplace();
    call->col_indices.emplace();
    if (!tensors_.view(v[kMaskRows], &*call->crow_indices) ||
        !tensors_.view(v[kMaskCols], &*call->col_indices) || !read(v[kBlockRows], &call->block_m) ||
        !read(v[kBlockCols], &call->block_n)) {
      return false;
    }
  }
  call->nnzb = -1;
  call->is_causal = v[kCausal] == Py_True;
  call->allow_tf32 = v[kTf32] == Py_True;
  call->deterministic = v[kRepeatable] == Py_True;
  return tensors_.view(v[kQ], &call->q) && tensors_.view(v[kK], &call->k) &&
         tensors_.view(v[kV], &call->v) && read_scale(v[kScale], &call->scale) &&
         (v[kNnzb] == nullptr || read(v[kNnzb], &call->nnzb)) && read_variant(v[kName], here) &&
         broken_rule(*call) == nullptr;
}

py::object Direct::attention(const Values& v) const {
  AttentionCall call{};
  direct::Circumstances here;
  if (!read_attention(v, &call, &here) || !fits(v[kLengths], call)) return {};
  std::array results{
      new_result_of(call.q),
      tensors_.new_empty(call.q, {call.q.sizes, call.q.sizes + 3}, type_of_lse(call))};
  return attended(call, results, &here, [&](direct::AttentionResults* written) {
    return direct::attention(call, written, here);
  });
}

py::object Direct::attention_gradients(const Values& v) const {
  AttentionCall call{};
  AttentionGradients given{};
  direct::Circumstances here;
  if (!read_attention(v, &call, &here) ||
      !is_for_us({}, {v[kGradOut], v[kGradLse], v[kGivenOut], v[kGivenLse]}) ||
      !tensors_.view(v[kGradOut], &given.dout) || !tensors_.view(v[kGivenOut], &given.out) ||
      !tensors_.view(v[kGivenLse], &given.lse) ||
      (is_given(v[kGradLse]) && !tensors_.view(v[kGradLse], &given.dlse.emplace()))) {
    return {};
  }
  std::array results{new_result_of(call.q), new_result_of(call.k), new_result_of(call.v)};
  return attended(call, results, &here, [&](direct::AttentionResults* written) {
    return direct::attention_gradients(call, given, written, here);
  });
}

}  // namespace sparse_autotune
