// _tuner.DirectProduct and _tuner.DirectGradients: what compiled graphs call instead of
// bsr_product and bsr_product_gradients, past the dispatcher.
//
// Such a graph calls its operators from Python in every step, and the dispatcher takes as long for
// one as the rest of the call: arguments become a boxed stack, and handles of the stable ABI after
// that. They are callables with the operators' parameters that know nothing of any matrix; what is
// not decided yet, and whatever is out of the ordinary, they hand to the operator.
#pragma once

#include <pybind11/pybind11.h>

namespace sparse_autotune {

void bind_direct_operators(pybind11::module_& m);

}  // namespace sparse_autotune
