// Python's C API where pybind11's own calls would take as long as what they call.
#pragma once

#include <pybind11/pybind11.h>

#include <exception>

namespace sparse_autotune {

// Without and with the GIL, in a third of pybind11's time.
class NoGil {
 public:
  NoGil() : state_(PyEval_SaveThread()) {}
  ~NoGil() { PyEval_RestoreThread(state_); }
  NoGil(const NoGil&) = delete;
  NoGil& operator=(const NoGil&) = delete;

 private:
  PyThreadState* state_;
};
class Gil {
 public:
  Gil() : state_(PyGILState_Ensure()) {}
  ~Gil() { PyGILState_Release(state_); }
  Gil(const Gil&) = delete;
  Gil& operator=(const Gil&) = delete;

 private:
  PyGILState_STATE state_;
};

// Python compares an interned name by its address.
inline pybind11::str interned(const char* name) {
  return pybind11::reinterpret_steal<pybind11::str>(PyUnicode_InternFromString(name));
}

// A new reference; throws the exception that stands for none.
inline pybind11::object checked(PyObject* result) {
  if (result == nullptr) throw pybind11::error_already_set();
  return pybind11::reinterpret_steal<pybind11::object>(result);
}

inline bool is_true(PyObject* result) {
  const int truth = PyObject_IsTrue(checked(result).ptr());
  if (truth < 0) throw pybind11::error_already_set();
  return truth != 0;
}

// What a method without arguments says of `object`.
inline bool is_true_of(pybind11::handle object, const pybind11::str& method) {
  PyObject* const self = object.ptr();
  return is_true(PyObject_VectorcallMethod(method.ptr(), &self, 1, nullptr));
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
