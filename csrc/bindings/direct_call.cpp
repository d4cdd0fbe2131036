#include "bindings/direct_call.h"

#include <structmember.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "bindings/python_calls.h"
#include "bindings/python_tensors.h"
#include "ops/direct_launch.h"

namespace py = pybind11;

namespace sparse_autotune {
namespace {

constexpr size_t kMaxParameters = 16;
using Values = std::array<PyObject*, kMaxParameters>;

// An operator's parameters, in the order of its schema.
class Parameters {
 public:
  // `first` tensors, `sizes` sizes and two operands may be given by position, what follows by name.
  Parameters(std::initializer_list<const char*> names, size_t first, size_t sizes)
      : first_(first), sizes_(sizes) {
    for (const char* name : names) names_.push_back(interned(name));
  }

  // From the arguments of a call, some of them by name; null for what is not given. False for what
  // the operator does not have.
  bool read(PyObject* const* arguments, size_t positional, PyObject* names, Values* values) const {
    if (positional > first_ + sizes_ + kOperands) return false;
    values->fill(nullptr);
    std::copy_n(arguments, positional, values->begin());
    const Py_ssize_t named = names == nullptr ? 0 : PyTuple_GET_SIZE(names);
    for (Py_ssize_t k = 0; k < named; ++k) {
      size_t i = 0;
      PyObject* const name = PyTuple_GET_ITEM(names, k);
      while (i < names_.size() && names_[i].ptr() != name) ++i;  // Python interns names, too
      if (i == names_.size() || (*values)[i] != nullptr) return false;
      (*values)[i] = arguments[positional + static_cast<size_t>(k)];
    }
    return true;
  }

  // From the tensors, the form, a tuple of all else in the order of the schema, and perhaps `out`.
  bool read(PyObject* const* arguments, size_t count, Values* values) const {
    const size_t tensors = first_ + kOperands;
    if (count <= tensors || !PyTuple_Check(arguments[tensors])) return false;
    PyObject* const* const form = reinterpret_cast<PyTupleObject*>(arguments[tensors])->ob_item;
    const auto fields = static_cast<size_t>(PyTuple_GET_SIZE(arguments[tensors]));
    if (fields < sizes_ || count - 1 + fields > kMaxParameters) return false;
    values->fill(nullptr);
    auto to = std::copy_n(arguments, first_, values->begin());
    to = std::copy_n(form, sizes_, to);
    to = std::copy_n(arguments + first_, kOperands, to);
    to = std::copy(form + sizes_, form + fields, to);
    std::copy(arguments + tensors + 1, arguments + count, to);
    return true;
  }

 private:
  static constexpr size_t kOperands = 2;
  std::vector<py::str> names_;
  size_t first_, sizes_;
};

bool is_given(PyObject* object) { return object != nullptr && object != Py_None; }

// False for what is no int: a symbol, for instance.
bool read(PyObject* object, int64_t* number) {
  if (object == nullptr || !PyLong_CheckExact(object)) return false;
  *number = PyLong_AsLongLong(object);
  if (*number != -1 || PyErr_Occurred() == nullptr) return true;
  PyErr_Clear();
  return false;
}

// Memory of torch's allocator, as a launch wants it: in the order of torch's current stream.
class TensorScratch final : public direct::Scratch {
 public:
  // Of the kind of `like`, which lies as `view` says.
  TensorScratch(const PythonTensors& tensors, py::handle like, const TensorView& view)
      : tensors_(tensors), like_(like), view_(view) {}

  // Called without the GIL; null where there is none.
  void* allocate(int64_t bytes) override {
    const Gil gil;
    try {
      const int64_t item = size_of(view_.type);
      kept_.push_back(tensors_.new_empty(like_, view_, {(bytes + item - 1) / item}));
      TensorView view;
      return tensors_.view(kept_.back(), &view) ? view.writable() : nullptr;
    } catch (py::error_already_set&) {
      return nullptr;  // no memory: the operator says so
    }
  }

 private:
  const PythonTensors& tensors_;
  const py::handle like_;
  const TensorView& view_;
  std::vector<py::object> kept_;
};

// Each function takes an operator's parameters and returns its result, or null where the operator
// has to do it: for whatever is wrong, out of the ordinary, or not decided yet.
class Direct {
 public:
  // `listeners` take no argument and return something true while someone listens to operators;
  // `forward_ad` is torch.autograd.forward_ad, whose level says so by not being negative.
  Direct(const py::capsule& exchange_api, py::object empty_on_cpu, py::object empty_on_gpu,
         py::type tensor, py::type parameter, py::function is_grad_enabled,
         const py::tuple& listeners, py::module_ forward_ad)
      : tensors_(exchange_api, std::move(tensor), std::move(parameter), std::move(empty_on_cpu),
                 std::move(empty_on_gpu)),
        is_grad_enabled_(std::move(is_grad_enabled)),
        forward_ad_(std::move(forward_ad)),
        level_(interned("_current_level")) {
    for (const py::handle listener : listeners) {
      listeners_.push_back(py::reinterpret_borrow<py::object>(listener));
    }
  }

  // bsr_matmul's, and `out`.
  py::object matmul(const Values& v) const {
    PyObject *const bias = v[kSecondDense], *const out = v[kOut];
    if (!is_for_us(v, {v[kValues], v[kDense], bias, out})) return {};
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
      result = new_result(v[kDense], call, &written);
    }
    if (!result) return {};
    const auto launch = [&] { return direct::matmul(call, written, here); };
    return launched(v[kValues], call.values, &here, launch) ? result : py::object();
  }

  // bsr_sampled_matmul's.
  py::object sampled_matmul(const Values& v) const {
    enum { kSampledRows = 2, kSampledCols, kBlockM, kBlockK, kX, kY, kTf32, kRepeatable, kName };
    if (!is_for_us(v, {v[kX], v[kY]})) return {};
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
    py::object result = tensors_.new_empty(v[kX], call.x, call.result_sizes());
    if (!tensors_.view(result, &blocks)) return {};
    const auto launch = [&] { return direct::sampled_matmul(call, blocks, here); };
    return launched(v[kX], call.x, &here, launch) ? result : py::object();
  }

  // Those of dense and values, of bsr_matmul's parameters with the result's gradient as `bias`.
  py::object gradients(const Values& v) const {
    enum { kGrad = kSecondDense };
    if (!is_for_us(v, {v[kValues], v[kDense], v[kGrad]})) return {};
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
    py::object grad_dense = new_result(v[kGrad], calls.of_dense, &written);
    const TensorView& values = forward.values;
    py::object grad_values =
        tensors_.new_empty(v[kValues], values, {values.sizes, values.sizes + values.dims});
    if (!grad_dense || !tensors_.view(grad_values, &blocks)) return {};
    const auto launch = [&] { return direct::gradients(calls, written, blocks, here); };
    if (!launched(v[kValues], values, &here, launch)) return {};
    return py::make_tuple(std::move(grad_dense), std::move(grad_values));
  }

 private:
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

  // Whether these are no more than their memory, no gradient may be asked for, and nobody but
  // autograd would meet the operator in the dispatcher.
  bool is_for_us(const Values& v, std::initializer_list<PyObject*> operands) const {
    const bool grad_enabled = is_true(PyObject_CallNoArgs(is_grad_enabled_.ptr()));
    for (PyObject* indices : {v[kCrow], v[kCol]}) {
      if (indices == nullptr || !tensors_.is_plain(indices)) return false;
    }
    for (PyObject* tensor : operands) {
      if (!is_given(tensor)) continue;
      if (!tensors_.is_plain(tensor) || tensors_.is_negated(tensor)) return false;
      if (grad_enabled && tensors_.requires_grad(tensor)) return false;
    }
    for (const py::object& listener : listeners_) {
      if (is_true(PyObject_CallNoArgs(listener.ptr()))) return false;
    }
    const py::object level = checked(PyObject_GetAttr(forward_ad_.ptr(), level_.ptr()));
    return PyLong_AsLong(level.ptr()) < 0;
  }

  bool read_versions(const Values& v, direct::Circumstances* here) const {
    return tensors_.read_version(v[kCrow], &here->versions[0]) &&
           tensors_.read_version(v[kCol], &here->versions[1]);
  }

  // All but the bias.
  bool read_product(const Values& v, MatmulCall* call, direct::Circumstances* here) const {
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

  static bool read_variant(PyObject* variant, direct::Circumstances* here) {
    if (!is_given(variant)) return true;
    Py_ssize_t length = 0;
    const char* text =
        PyUnicode_CheckExact(variant) ? PyUnicode_AsUTF8AndSize(variant, &length) : nullptr;
    if (text == nullptr) PyErr_Clear();
    if (text == nullptr || length == 0) return false;
    here->variant = {text, static_cast<size_t>(length)};
    return true;
  }

  // Null where it has no memory.
  py::object new_result(PyObject* like, const MatmulCall& call, TensorView* written) const {
    py::object result = tensors_.new_empty(like, call.dense, call.result_sizes());
    return tensors_.view(result, written) ? result : py::object();
  }

  // What `launch` returns, called without the GIL with scratch of the kind of `like`.
  template <typename Launch>
  bool launched(PyObject* like, const TensorView& view, direct::Circumstances* here,
                Launch&& launch) const {
    TensorScratch scratch(tensors_, like, view);
    here->scratch = &scratch;
    const NoGil no_gil;
    return launch();
  }

  const PythonTensors tensors_;
  const py::function is_grad_enabled_;
  std::vector<py::object> listeners_;
  const py::module_ forward_ad_;
  const py::str level_;
};

struct Entry {
  const char* name;
  Parameters parameters;
  py::object (Direct::*attempt)(const Values&) const;
};

// Never freed: it holds Python's names.
const std::array<Entry, 3>& entries() {
  static const auto* const all = [] {
    const Parameters product(
        {"crow_indices", "col_indices", "values", "rows", "cols", "dense", "bias", "sparse_right",
         "transpose", "activation", "frozen", "allow_tf32", "deterministic", "variant", "out"},
        3, 2);
    const Parameters sampled({"crow_indices", "col_indices", "rows", "cols", "block_m", "block_k",
                              "x", "y", "allow_tf32", "deterministic", "variant"},
                             2, 4);
    return new std::array<Entry, 3>{{{"bsr_matmul", product, &Direct::matmul},
                                     {"bsr_sampled_matmul", sampled, &Direct::sampled_matmul},
                                     {"gradients", product, &Direct::gradients}}};
  }();
  return *all;
}

// A callable. With `dispatched`, torch's way into the dispatcher, it has the operator's parameters
// and stands for it in compiled graphs, which call it from Python in every step: the dispatcher
// takes as long for one call as the rest of it, as arguments become a boxed stack, and handles of
// the stable ABI after that. Without, it takes tensors and a form, and returns None for what the
// operator has to do.
struct DirectOperator {
  const Entry& entry;
  const Direct& direct;
  py::object kept;  // of which `direct` is part
  py::object dispatched;
};

// A plain C type: pybind11's own calls would take as long as what they call.
struct Callable {
  PyObject_HEAD vectorcallfunc vectorcall;
  DirectOperator* of;
};
DirectOperator& operator_of(PyObject* self) { return *reinterpret_cast<Callable*>(self)->of; }

PyObject* call(PyObject* self, PyObject* const* arguments, size_t flags, PyObject* names) {
  const DirectOperator& op = operator_of(self);
  const auto positional = static_cast<size_t>(PyVectorcall_NARGS(flags));
  return returned([&] {
    Values values;
    py::object result;
    const bool alone = op.dispatched.is_none();
    const Parameters& parameters = op.entry.parameters;
    if (alone ? parameters.read(arguments, positional, &values)
              : parameters.read(arguments, positional, names, &values)) {
      result = (op.direct.*op.entry.attempt)(values);
    }
    if (result) return result;
    return alone ? py::object(py::none())
                 : checked(PyObject_Vectorcall(op.dispatched.ptr(), arguments, flags, names));
  });
}

// The operator's: torch's own object for it is kept in tables by this.
Py_hash_t hash(PyObject* self) { return PyObject_Hash(operator_of(self).dispatched.ptr()); }

void deallocate(PyObject* self) {
  PyTypeObject* const type = Py_TYPE(self);
  delete &operator_of(self);
  type->tp_free(self);
  Py_DECREF(type);
}

PyObject* make(PyTypeObject* type, PyObject* arguments, PyObject*) {
  const char* name = nullptr;
  PyObject *direct = nullptr, *dispatched = nullptr;
  if (!PyArg_ParseTuple(arguments, "sOO", &name, &direct, &dispatched)) return nullptr;
  const auto found = std::find_if(entries().begin(), entries().end(), [&](const Entry& entry) {
    return std::string_view(entry.name) == name;
  });
  if (found == entries().end()) return PyErr_Format(PyExc_ValueError, "no operator %s", name);
  return returned([&] {
    auto of = std::make_unique<DirectOperator>(
        DirectOperator{*found, py::cast<const Direct&>(py::handle(direct)),
                       py::reinterpret_borrow<py::object>(direct),
                       py::reinterpret_borrow<py::object>(dispatched)});
    py::object self = checked(type->tp_alloc(type, 0));
    reinterpret_cast<Callable*>(self.ptr())->vectorcall = &call;
    reinterpret_cast<Callable*>(self.ptr())->of = of.release();
    return self;
  });
}

}  // namespace

void bind_direct_calls(py::module_& m) {
  py::class_<Direct> type(m, "Direct");
  type.def(py::init<const py::capsule&, py::object, py::object, py::type, py::type, py::function,
                    const py::tuple&, py::module_>(),
           py::kw_only(), py::arg("exchange_api"), py::arg("empty_on_cpu"), py::arg("empty_on_gpu"),
           py::arg("tensor"), py::arg("parameter"), py::arg("is_grad_enabled"),
           py::arg("listeners"), py::arg("forward_ad"));
  static PyMemberDef members[] = {
      {"__vectorcalloffset__", T_PYSSIZET, offsetof(Callable, vectorcall), READONLY, nullptr},
      {nullptr, 0, 0, 0, nullptr}};
  PyType_Slot slots[] = {{Py_tp_new, reinterpret_cast<void*>(&make)},
                         {Py_tp_call, reinterpret_cast<void*>(&PyVectorcall_Call)},
                         {Py_tp_members, members},
                         {Py_tp_hash, reinterpret_cast<void*>(&hash)},
                         {Py_tp_dealloc, reinterpret_cast<void*>(&deallocate)},
                         {0, nullptr}};
  PyType_Spec spec{"sparse_autotune._tuner.DirectOperator", sizeof(Callable), 0,
                   Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL, slots};
  m.attr("DirectOperator") = checked(PyType_FromSpec(&spec));
}

}  // namespace sparse_autotune
