// What Python's torch says of a call: whether a tensor is its memory and no more, whether a
// gradient may be asked for, and whether anyone but autograd would meet the operator in the
// dispatcher.
//
// A hit asks all of that; asked in Python it would take longer than the product's look-up.
#pragma once

#include <pybind11/pybind11.h>

#include <vector>

namespace sparse_autotune {

class Eager {
 public:
  // `listeners` take no argument and return something true while someone listens; `forward_ad` is
  // torch.autograd.forward_ad, whose level says so by not being negative.
  Eager(pybind11::type tensor, pybind11::type parameter, pybind11::function is_grad_enabled,
        const pybind11::tuple& listeners, pybind11::module_ forward_ad);

  // A torch.Tensor and none of its subclasses, without lazy negation.
  bool is_plain(pybind11::handle tensor) const;
  // Likewise, or a torch.nn.Parameter.
  bool is_plain_parameter(pybind11::handle tensor) const;
  // Whether its version counter tells nothing.
  bool is_inference(pybind11::handle tensor) const;
  // Whether a matrix may be known by its memory and its version counter: a torch.Tensor or a
  // torch.nn.Parameter with both, without lazy negation.
  bool is_component(pybind11::handle tensor) const;
  bool is_grad_enabled() const;
  bool requires_grad(pybind11::handle tensor) const;
  bool nobody_listens() const;

 private:
  const pybind11::type tensor_, parameter_;
  const pybind11::function is_grad_enabled_;
  std::vector<pybind11::object> listeners_;
  const pybind11::module_ forward_ad_;
  const pybind11::str is_neg_, is_inference_, requires_grad_, level_;
};

void bind_eager(pybind11::module_& m);

}  // namespace sparse_autotune
