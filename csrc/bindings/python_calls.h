// Python's C API where pybind11's own calls would take as long as what they call.
#pragma once

#include <pybind11/pybind11.h>

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

}  // namespace sparse_autotune
