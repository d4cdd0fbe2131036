#include "bindings/direct.h"

namespace py = pybind11;

namespace sparse_autotune {

bool read(PyObject* object, int64_t* number) {
  if (object == nullptr || !PyLong_CheckExact(object)) return false;
  *number = PyLong_AsLongLong(object);
  if (*number != -1 || PyErr_Occurred() == nullptr) return true;
  PyErr_Clear();
  return false;
}

Direct::Direct(const py::kwargs& of_torch)
    : tensors_(of_torch),
      is_grad_enabled_(of_torch["is_grad_enabled"]),
      listeners_(of_torch["listeners"]),
      forward_ad_(of_torch["forward_ad"]) {}

void* Direct::allocate(const TensorView& like, int64_t bytes, std::vector<py::object>* kept) const {
  const Gil gil;
  try {
    const int64_t item = size_of(like.type);
    kept->push_back(tensors_.new_empty(like, {(bytes + item - 1) / item}));
    TensorView view;
    return tensors_.view(kept->back(), &view) ? view.writable() : nullptr;
  } catch (py::error_already_set&) {
    return nullptr;  // no memory: the operator says so
  }
}

bool Direct::is_for_us(std::initializer_list<PyObject*> indices,
                       std::initializer_list<PyObject*> operands) const {
  const bool grad_enabled = is_true(PyObject_CallNoArgs(is_grad_enabled_.ptr()));
  for (PyObject* tensor : indices) {
    if (is_given(tensor) && !tensors_.is_plain(tensor)) return false;
  }
  for (PyObject* tensor : operands) {
    if (!is_given(tensor)) continue;
    if (!tensors_.is_plain(tensor) || tensors_.is_negated(tensor)) return false;
    if (grad_enabled && tensors_.requires_grad(tensor)) return false;
  }
  for (const py::handle listener : listeners_) {
    if (is_true(PyObject_CallNoArgs(listener.ptr()))) return false;
  }
  const py::object level = checked(PyObject_GetAttr(forward_ad_.ptr(), level_.ptr()));
  return PyLong_AsLong(level.ptr()) < 0;
}

bool Direct::read_variant(PyObject* variant, direct::Circumstances* here) {
  if (!is_given(variant)) return true;
  Py_ssize_t length = 0;
  const char* text =
      PyUnicode_CheckExact(variant) ? PyUnicode_AsUTF8AndSize(variant, &length) : nullptr;
  if (text == nullptr) PyErr_Clear();
  if (text == nullptr || length == 0) return false;
  here->variant = {text, static_cast<size_t>(length)};
  return true;
}

}  // namespace sparse_autotune
