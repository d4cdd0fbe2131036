// _tuner.Direct: products of Python's tensors past the dispatcher (ops/direct_launch.h), and
// _tuner.DirectOperator, which does that for compiled graphs.
#pragma once

#include <pybind11/pybind11.h>

namespace sparse_autotune {

void bind_direct_calls(pybind11::module_& m);

}  // namespace sparse_autotune
