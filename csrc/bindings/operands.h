// Where the operands of a product lie, read from Python's tensors without the dispatcher: what the
// short ways past it share.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "bindings/tensor_exchange.h"
#include "ops/launcher.h"

namespace sparse_autotune {

// Of the dtypes that are computed with.
std::optional<DType> dtype_of(exchange::ElementType type);

// From any byte of the one to any of the other.
bool overlap(const exchange::TensorView& one, const exchange::TensorView& other);

// A block-sparse matrix by its components, and what may be multiplied by it.
struct Matrix {
  exchange::ElementType type{};
  int32_t device = 0, ordinal = 0;
  int64_t rows = 0, cols = 0, block_m = 0, block_k = 0;
  DType dtype{};
  PatternKey pattern{};

  // The rules of `matrix_checks` that are about one matrix, but for its indices' content; nullopt
  // where one is broken, and on devices that nothing here computes on.
  static std::optional<Matrix> of(const exchange::TensorView& crow_indices,
                                  const exchange::TensorView& col_indices,
                                  const exchange::TensorView& values, int64_t rows, int64_t cols);

  Launcher launcher() const { return {pattern, rows, cols, block_m, block_k, dtype}; }

  // Of its dtype and on its device.
  bool is_operand(const exchange::TensorView& view) const;
  // The product's two dense matrices, as the operator reads `in` and the result: one of them on the
  // right of A, or on its left, with all leading dimensions one that is walked in steps. False for
  // whatever does not fit so.
  bool set_dense(const exchange::TensorView& in, const exchange::TensorView& out, bool sparse_right,
                 Launcher::Call* call) const;
  bool set_bias(const exchange::TensorView& bias, Launcher::Call* call) const;
  // The two dense matrices of a sampled product, x (..., m, n) and y (..., n, k), whose terms are
  // one dimension that is walked in steps; with `transposed` it is of (x * y)^T. False for whatever
  // does not fit so.
  bool set_sample(const exchange::TensorView& x, const exchange::TensorView& y, bool transposed,
                  Launcher::Call* call, Launcher::Sample* sample) const;
};

// Asks torch's tensors, under the GIL; makes others.
class Operands {
 public:
  // torch's capsule, which lives as long as the process, and what its compiled code allocates with:
  // (sizes, strides, dtype) to a tensor on the CPU, and to one on the current GPU; None where torch
  // has none.
  Operands(const pybind11::capsule& api, pybind11::object empty_on_cpu,
           pybind11::object empty_on_gpu);

  // False, and no exception, for what has no memory to look at: a sparse tensor, for instance, or
  // one that sharding took the memory of.
  bool view(pybind11::handle tensor, exchange::TensorView* out) const;
  // Of a component of a matrix; throws.
  exchange::TensorView component(pybind11::handle tensor, int32_t dims) const;
  // How often the indices were written; false, and no exception, where one has no version counter.
  bool read_versions(pybind11::handle crow_indices, pybind11::handle col_indices,
                     Launcher::Call* call) const;
  // A new contiguous tensor of the dtype of `like`, which lies as `view` says, and of its kind of
  // device, whichever is current; throws where there is no memory.
  pybind11::object new_empty(pybind11::handle like, const exchange::TensorView& view,
                             const int64_t* sizes, int32_t dims) const;
  // A product's: like `dense` but for the side that the product changes to `size`. None for more
  // dimensions than any product has, and for a batch of matrices on the right.
  pybind11::object new_result(pybind11::handle dense, const exchange::TensorView& in,
                              bool sparse_right, int64_t size) const;

 private:
  bool has_memory(pybind11::handle tensor, const exchange::TensorView& view) const;
  bool read_version(pybind11::handle tensor, int64_t* version) const;

  const exchange::Api& api_;
  const pybind11::object empty_on_cpu_, empty_on_gpu_;
  const pybind11::str version_, new_empty_, dtype_, storage_offset_;
};

void bind_operands(pybind11::module_& m);

// Memory of torch's allocator, as a launch wants it: in the order of torch's current stream.
class TensorScratch {
 public:
  // Of the kind of `like`, which lies as `view` says.
  TensorScratch(const Operands& operands, pybind11::handle like, const exchange::TensorView& view)
      : operands_(operands), like_(like), view_(view) {}
  Launcher::Scratch scratch() { return {&TensorScratch::allocate, this}; }

 private:
  // Called without the GIL; null where there is none.
  static void* allocate(void* self, int64_t bytes);

  const Operands& operands_;
  const pybind11::handle like_;
  const exchange::TensorView& view_;
  std::vector<pybind11::object> kept_;
};

// What `launch` returns, called without the GIL with scratch of the kind of `like`.
template <typename Launch>
bool launched(const Operands& operands, pybind11::handle like, const exchange::TensorView& view,
              Launch&& launch) {
  TensorScratch scratch(operands, like, view);
  const pybind11::gil_scoped_release no_gil;
  return launch(scratch.scratch());
}

}  // namespace sparse_autotune
