#include "bindings/eager.h"

#include <utility>

#include "bindings/python_calls.h"

namespace py = pybind11;

namespace sparse_autotune {
namespace {

bool is_true(PyObject* result) {
  const int truth = PyObject_IsTrue(checked(result).ptr());
  if (truth < 0) throw py::error_already_set();
  return truth != 0;
}

bool is_true_of(py::handle object, const py::str& method) {
  PyObject* const self = object.ptr();
  return is_true(PyObject_VectorcallMethod(method.ptr(), &self, 1, nullptr));
}

}  // namespace

Eager::Eager(py::type tensor, py::type parameter, py::function is_grad_enabled,
             const py::tuple& listeners, py::module_ forward_ad)
    : tensor_(std::move(tensor)),
      parameter_(std::move(parameter)),
      is_grad_enabled_(std::move(is_grad_enabled)),
      forward_ad_(std::move(forward_ad)),
      is_neg_(interned("is_neg")),
      is_inference_(interned("is_inference")),
      requires_grad_(interned("requires_grad")),
      level_(interned("_current_level")) {
  for (const py::handle listener : listeners) {
    listeners_.push_back(py::reinterpret_borrow<py::object>(listener));
  }
}

bool Eager::is_plain(py::handle tensor) const {
  return py::type::handle_of(tensor).is(tensor_) && !is_true_of(tensor, is_neg_);
}

bool Eager::is_plain_parameter(py::handle tensor) const {
  return is_plain(tensor) || py::type::handle_of(tensor).is(parameter_);
}

bool Eager::is_inference(py::handle tensor) const { return is_true_of(tensor, is_inference_); }

bool Eager::is_component(py::handle tensor) const {
  const py::handle type = py::type::handle_of(tensor);
  return (type.is(tensor_) || type.is(parameter_)) && !is_true_of(tensor, is_neg_) &&
         !is_inference(tensor);
}

bool Eager::is_grad_enabled() const { return is_true(PyObject_CallNoArgs(is_grad_enabled_.ptr())); }

bool Eager::requires_grad(py::handle tensor) const {
  return is_true(PyObject_GetAttr(tensor.ptr(), requires_grad_.ptr()));
}

bool Eager::nobody_listens() const {
  for (const py::object& listener : listeners_) {
    if (is_true(PyObject_CallNoArgs(listener.ptr()))) return false;
  }
  const py::object level = checked(PyObject_GetAttr(forward_ad_.ptr(), level_.ptr()));
  return PyLong_AsLong(level.ptr()) < 0;
}

void bind_eager(py::module_& m) {
  py::class_<Eager>(m, "Eager")
      .def(py::init<py::type, py::type, py::function, const py::tuple&, py::module_>(),
           py::kw_only(), py::arg("tensor"), py::arg("parameter"), py::arg("is_grad_enabled"),
           py::arg("listeners"), py::arg("forward_ad"))
      .def("is_component", &Eager::is_component, py::arg("tensor"))
      .def("nobody_listens", &Eager::nobody_listens);
}

}  // namespace sparse_autotune
