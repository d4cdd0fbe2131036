// Python's tensors without torch's headers: where they lie, whether they are no more than their
// memory, and new ones.
#pragma once

#include <pybind11/pybind11.h>

#include <array>
#include <cstdint>
#include <vector>

#include "bindings/python_calls.h"
#include "bindings/tensor_exchange.h"
#include "calls/tensor_view.h"

namespace sparse_autotune {

// All under the GIL.
class PythonTensors {
 public:
  // torch's `exchange_api`, a capsule, which lives as long as the process; `tensor`, torch.Tensor,
  // and `parameter`, torch.nn.Parameter; what compiled code allocates with, `empty_on_cpu` and
  // `empty_on_gpu`: (sizes, strides, dtype) to a tensor on the CPU, and to one on the current GPU;
  // and torch's `dtypes` in the order of ElementType.
  explicit PythonTensors(const pybind11::dict& of_torch);

  // A torch.Tensor or a torch.nn.Parameter, and none of their subclasses.
  bool is_plain(pybind11::handle tensor) const;
  // Whether its elements are to be read with the other sign.
  bool is_negated(pybind11::handle tensor) const { return is_true_of(tensor, is_neg_); }
  bool is_inference(pybind11::handle tensor) const { return is_true_of(tensor, is_inference_); }
  bool requires_grad(pybind11::handle tensor) const {
    return is_true(PyObject_GetAttr(tensor.ptr(), requires_grad_.ptr()));
  }
  // How often it was written; false, and no exception, where nobody counts.
  bool read_version(pybind11::handle tensor, int64_t* version) const;
  // False, and no exception, for what is not there and what has no memory to look at: a sparse
  // tensor, for instance.
  bool view(pybind11::handle tensor, TensorView* out) const;
  // A new tensor, contiguous unless strides are given, of the dtype of `like` and on its kind of
  // device, whichever is current; throws where there is no memory.
  pybind11::object new_empty(const TensorView& like, const std::vector<int64_t>& sizes) const;
  pybind11::object new_empty(const TensorView& like, const std::vector<int64_t>& sizes,
                             ElementType type) const;
  pybind11::object new_empty(const TensorView& like, const std::vector<int64_t>& sizes,
                             const std::vector<int64_t>& strides, ElementType type) const;

 private:
  bool has_memory(pybind11::handle tensor, const exchange::ForeignTensor& v) const;

  const exchange::Api& api_;
  const pybind11::type tensor_, parameter_;
  const pybind11::object empty_on_cpu_, empty_on_gpu_;
  // Of the last new tensor of so many dimensions, as the next one is often like it.
  struct Like {
    std::vector<int64_t> sizes, strides;
    pybind11::object shape, steps;
  };
  mutable std::array<Like, 8> last_;
  const pybind11::tuple dtypes_;
  const pybind11::str version_ = interned("_version"), storage_offset_ = interned("storage_offset"),
                      is_neg_ = interned("is_neg"), is_inference_ = interned("is_inference"),
                      requires_grad_ = interned("requires_grad");
};

}  // namespace sparse_autotune
