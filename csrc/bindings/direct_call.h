// _tuner.Direct (bindings/direct.h), and _tuner.DirectOperator, one of its functions as a callable.
#pragma once

#include <pybind11/pybind11.h>

namespace sparse_autotune {

void bind_direct_calls(pybind11::module_& m);

}  // namespace sparse_autotune
