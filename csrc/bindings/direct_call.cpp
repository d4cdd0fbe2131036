#include <pybind11/stl.h>
#include <structmember.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <memory>
#include <string_view>

#include "bindings/direct.h"

namespace py = pybind11;

namespace sparse_autotune {
namespace {

// An operator's parameters, in the order of its schema: `first` tensors, `sizes` sizes and
// `operands` tensors may be given by position, what follows by name.
struct Parameters {
  size_t first, sizes, operands;

  // From the arguments of a call, some of them by name; null for what is not given. False for what
  // the operator does not have. `all` are the names of its parameters.
  bool read(PyObject* const* arguments, size_t positional, PyObject* names, const py::tuple& all,
            Values* values) const {
    if (positional > first + sizes + operands) return false;
    values->fill(nullptr);
    std::copy_n(arguments, positional, values->begin());
    const Py_ssize_t named = names == nullptr ? 0 : PyTuple_GET_SIZE(names);
    for (Py_ssize_t k = 0; k < named; ++k) {
      size_t i = 0;
      PyObject* const name = PyTuple_GET_ITEM(names, k);
      while (i < all.size() && PyTuple_GET_ITEM(all.ptr(), i) != name) ++i;  // both are interned
      if (i == all.size() || (*values)[i] != nullptr) return false;
      (*values)[i] = arguments[positional + static_cast<size_t>(k)];
    }
    return true;
  }

  // From the tensors, the form, a tuple of all else in the order of the schema, and perhaps more.
  bool read(PyObject* const* arguments, size_t count, Values* values) const {
    const size_t tensors = first + operands;
    if (count <= tensors || !PyTuple_Check(arguments[tensors])) return false;
    PyObject* const* const form = reinterpret_cast<PyTupleObject*>(arguments[tensors])->ob_item;
    const auto fields = static_cast<size_t>(PyTuple_GET_SIZE(arguments[tensors]));
    if (fields < sizes || count - 1 + fields > kMaxParameters) return false;
    values->fill(nullptr);
    auto to = std::copy_n(arguments, first, values->begin());
    to = std::copy_n(form, sizes, to);
    to = std::copy_n(arguments + first, operands, to);
    to = std::copy(form + sizes, form + fields, to);
    std::copy(arguments + tensors + 1, arguments + count, to);
    return true;
  }
};

struct Entry {
  std::string_view name;
  Parameters parameters;
  py::object (Direct::*attempt)(const Values&) const;
};
constexpr Entry kEntries[] = {{"bsr_matmul", {3, 2, 2}, &Direct::matmul},
                              {"bsr_sampled_matmul", {2, 4, 2}, &Direct::sampled_matmul},
                              {"gradients", {3, 2, 2}, &Direct::gradients},
                              {"attention", {5, 2, 0}, &Direct::attention},
                              {"attention_gradients", {5, 2, 0}, &Direct::attention_gradients}};

// A callable. With `names`, those of the operator's parameters, it is called as the operator is and
// stands for it in compiled graphs, which call it from Python in every step: the dispatcher takes
// as long for one call as the rest of it, as arguments become a boxed stack, and handles of the
// stable ABI after that. Without, it takes tensors and a form. `otherwise`, torch's way into the
// dispatcher for instance, is called for what the operator has to do; None: the result is None.
struct DirectOperator {
  const Entry& entry;
  const Direct& direct;
  py::object kept;  // of which `direct` is part
  py::object otherwise;
  py::tuple names;
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
    const Parameters& parameters = op.entry.parameters;
    if (op.names.empty() ? parameters.read(arguments, positional, &values)
                         : parameters.read(arguments, positional, names, op.names, &values)) {
      result = (op.direct.*op.entry.attempt)(values);
    }
    if (result) return result;
    return op.otherwise.is_none()
               ? py::object(py::none())
               : checked(PyObject_Vectorcall(op.otherwise.ptr(), arguments, flags, names));
  });
}

// The operator's: torch's own object for it is kept in tables by this.
Py_hash_t hash(PyObject* self) { return PyObject_Hash(operator_of(self).otherwise.ptr()); }

void deallocate(PyObject* self) {
  PyTypeObject* const type = Py_TYPE(self);
  delete &operator_of(self);
  type->tp_free(self);
  Py_DECREF(type);
}

PyObject* make(PyTypeObject* type, PyObject* arguments, PyObject*) {
  const char* name = nullptr;
  PyObject *direct = nullptr, *otherwise = Py_None, *names = nullptr;
  if (!PyArg_ParseTuple(arguments, "sO|OO!", &name, &direct, &otherwise, &PyTuple_Type, &names)) {
    return nullptr;
  }
  const auto* const found = std::find_if(std::begin(kEntries), std::end(kEntries),
                                         [&](const Entry& entry) { return entry.name == name; });
  if (found == std::end(kEntries)) return PyErr_Format(PyExc_ValueError, "no operator %s", name);
  return returned([&] {
    auto of = std::make_unique<DirectOperator>(DirectOperator{
        *found, py::cast<const Direct&>(py::handle(direct)),
        py::reinterpret_borrow<py::object>(direct), py::reinterpret_borrow<py::object>(otherwise),
        names == nullptr ? py::tuple() : py::reinterpret_borrow<py::tuple>(names)});
    py::object self = checked(type->tp_alloc(type, 0));
    reinterpret_cast<Callable*>(self.ptr())->vectorcall = &call;
    reinterpret_cast<Callable*>(self.ptr())->of = of.release();
    return self;
  });
}

}  // namespace

void bind_direct_calls(py::module_& m) {
  py::class_<Direct>(m, "Direct")
      .def(py::init<const py::kwargs&>())
      .def("is_matrix", &Direct::is_matrix)
      .def("mask_of_rule", &Direct::mask_of_rule);
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
