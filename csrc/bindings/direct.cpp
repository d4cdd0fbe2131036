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
      new_handles_(of_torch["new_handles"]),
      adopt_(of_torch["adopt"]),
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

std::array<void*, 3> Direct::new_handles(PyObject* crow, PyObject* col, PyObject* operand) const {
  const Gil gil;
  std::array<void*, 3> handles{};
  try {
    const py::object tensors = checked(PyList_New(3));
    Py_ssize_t i = 0;
    for (PyObject* tensor : {crow, col, operand}) {
      PyList_SET_ITEM(tensors.ptr(), i++, Py_NewRef(tensor));
    }
    const py::object made = checked(PyObject_CallOneArg(new_handles_.ptr(), tensors.ptr()));
    for (size_t k = 0; k < handles.size(); ++k) {
      handles[k] =
          PyCapsule_GetPointer(PyList_GET_ITEM(made.ptr(), static_cast<Py_ssize_t>(k)), nullptr);
    }
  } catch (py::error_already_set&) {
    return {};
  }
  return handles;
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
