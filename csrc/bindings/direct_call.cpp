#include "bindings/direct_call.h"

#include <structmember.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <initializer_list>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "bindings/direct.h"
#include "bindings/python_calls.h"

namespace py = pybind11;

namespace sparse_autotune {
namespace {

// An operator's parameters, in the order of its schema.
class Parameters {
 public:
  // `first` tensors, `sizes` sizes and `operands` tensors may be given by position, what follows by
  // name.
  Parameters(std::initializer_list<const char*> names, size_t first, size_t sizes, size_t operands)
      : first_(first), sizes_(sizes), operands_(operands) {
    for (const char* name : names) names_.push_back(interned(name));
  }

  // From the arguments of a call, some of them by name; null for what is not given. False for what
  // the operator does not have.
  bool read(PyObject* const* arguments, size_t positional, PyObject* names, Values* values) const {
    if (positional > first_ + sizes_ + operands_) return false;
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

  // From the tensors, the form, a tuple of all else in the order of the schema, and perhaps one
  // argument more.
  bool read(PyObject* const* arguments, size_t count, Values* values) const {
    const size_t tensors = first_ + operands_;
    if (count <= tensors || !PyTuple_Check(arguments[tensors])) return false;
    PyObject* const* const form = reinterpret_cast<PyTupleObject*>(arguments[tensors])->ob_item;
    const auto fields = static_cast<size_t>(PyTuple_GET_SIZE(arguments[tensors]));
    if (fields < sizes_ || count - 1 + fields > kMaxParameters) return false;
    values->fill(nullptr);
    auto to = std::copy_n(arguments, first_, values->begin());
    to = std::copy_n(form, sizes_, to);
    to = std::copy_n(arguments + first_, operands_, to);
    to = std::copy(form + sizes_, form + fields, to);
    std::copy(arguments + tensors + 1, arguments + count, to);
    return true;
  }

 private:
  std::vector<py::str> names_;
  size_t first_, sizes_, operands_;
};

struct Entry {
  const char* name;
  Parameters parameters;
  py::object (Direct::*attempt)(const Values&) const;
};

// Never freed: it holds Python's names.
const std::array<Entry, 4>& entries() {
  static const auto* const all = [] {
    const Parameters product(
        {"crow_indices", "col_indices", "values", "rows", "cols", "dense", "bias", "sparse_right",
         "transpose", "activation", "frozen", "allow_tf32", "deterministic", "variant", "out"},
        3, 2, 2);
    const Parameters sampled({"crow_indices", "col_indices", "rows", "cols", "block_m", "block_k",
                              "x", "y", "allow_tf32", "deterministic", "variant"},
                             2, 4, 2);
    const Parameters attention(
        {"q", "k", "v", "crow_indices", "col_indices", "block_m", "block_n", "is_causal", "scale",
         "nnzb", "allow_tf32", "deterministic", "variant", "lengths"},
        5, 2, 0);
    return new std::array<Entry, 4>{{{"bsr_matmul", product, &Direct::matmul},
                                     {"bsr_sampled_matmul", sampled, &Direct::sampled_matmul},
                                     {"gradients", product, &Direct::gradients},
                                     {"attention", attention, &Direct::attention}}};
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
  type.def(py::init([](const py::capsule& exchange_api, py::object empty_on_cpu,
                       py::object empty_on_gpu, py::type tensor, py::type parameter,
                       const py::tuple& dtypes, py::function is_grad_enabled,
                       const py::tuple& listeners, py::module_ forward_ad) {
             return Direct(PythonTensors(exchange_api, std::move(tensor), std::move(parameter),
                                         std::move(empty_on_cpu), std::move(empty_on_gpu), dtypes),
                           std::move(is_grad_enabled), listeners, std::move(forward_ad));
           }),
           py::kw_only(), py::arg("exchange_api"), py::arg("empty_on_cpu"), py::arg("empty_on_gpu"),
           py::arg("tensor"), py::arg("parameter"), py::arg("dtypes"), py::arg("is_grad_enabled"),
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
