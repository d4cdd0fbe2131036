// Python's C API where pybind11's own calls would take as long as what they call.
#pragma once

#include <pybind11/pybind11.h>

#include <exception>

namespace sparse_autotune {

// Python compares an interned name by its address.
inline pybind11::str interned(const char* name) {
  return pybind11::reinterpret_steal<pybind11::str>(PyUnicode_InternFromString(name));
}

// A new reference; throws the exception that stands for none.
inline pybind11::object checked(PyObject* result) {
  if (result == nullptr) throw pybind11::error_already_set();
  return pybind11::reinterpret_steal<pybind11::object>(result);
}

// What a C function returns to Python: the object that `call` gives, or null and its exception.
template <typename Call>
PyObject* returned(Call&& call) {
  try {
    return call().release().ptr();
  } catch (pybind11::error_already_set& error) {
    error.restore();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

}  // namespace sparse_autotune
