#pragma once

#include <pybind11/pybind11.h>

namespace sparse_autotune {

void bind_launcher(pybind11::module_& m);

}  // namespace sparse_autotune
