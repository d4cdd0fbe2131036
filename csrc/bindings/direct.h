// Products and attention of Python's tensors past the dispatcher (ops/direct_launch.h).
#pragma once

#include <pybind11/pybind11.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <vector>

#include "bindings/python_calls.h"
#include "bindings/python_tensors.h"
#include "calls/call.h"
#include "ops/direct_launch.h"

namespace sparse_autotune {

// An operator's arguments in the order of its schema; null: not given.
constexpr size_t kMaxParameters = 17;
using Values = std::array<PyObject*, kMaxParameters>;

inline bool is_given(PyObject* object) { return object != nullptr && object != Py_None; }
// False for what is no int: a symbol, for instance.
bool read(PyObject* object, int64_t* number);

// Each function takes an operator's parameters and returns its result, or null where the operator
// has to do it: for whatever is wrong, out of the ordinary, or not decided yet.
class Direct {
 public:
  // What PythonTensors takes; `new_handles`, which gives capsules of AtenTensorHandles for a list
  // of tensors; `adopt`, which makes tensors of a list of such capsules; is_grad_enabled;
  // `listeners`, which take no argument and return something true while someone listens to
  // operators; and `forward_ad`, torch.autograd.forward_ad, whose level says so by not being
  // negative.
  explicit Direct(const pybind11::kwargs& of_torch);

  // Whether these are plain contiguous tensors that keep the rules of one BSR matrix in elements,
  // its indices' contents aside. False also for what has no memory here.
  bool is_matrix(pybind11::handle crow, pybind11::handle col, pybind11::handle values,
                 pybind11::handle rows, pybind11::handle cols) const;

  // The lists of one pattern on that GPU, -1: the current one, of documents' ends where they are
  // given, and how many blocks it has: (crow_indices, col_indices, blocks, is_exact). None: not
  // here.
  pybind11::object mask_of_rule(int32_t ordinal, const std::array<int64_t, 9>& rule,
                                const std::optional<std::vector<int64_t>>& ends) const;

  // bsr_matmul's, and `out`.
  pybind11::object matmul(const Values& v) const;
  // bsr_sampled_matmul's.
  pybind11::object sampled_matmul(const Values& v) const;
  // Those of dense and values, of bsr_matmul's parameters with the result's gradient as `bias`.
  pybind11::object gradients(const Values& v) const;
  // attention's, and (S, T), the lengths that its mask is of.
  pybind11::object attention(const Values& v) const;
  // Those of q, k and v, of attention's parameters, and the gradients of `out` and lse, `out` and
  // lse.
  pybind11::object attention_gradients(const Values& v) const;

 private:
  // Whether these are no more than their memory, no gradient may be asked for, and nobody but
  // autograd would meet the operator in the dispatcher. Those that are not given are not looked at.
  bool is_for_us(std::initializer_list<PyObject*> indices,
                 std::initializer_list<PyObject*> operands) const;
  // All of a product but its second dense operand; false for what is not for us.
  bool read_product(const Values& v, MatmulCall* call, direct::Circumstances* here) const;
  // All of attention but what is behind its variant.
  bool read_attention(const Values& v, AttentionCall* call, direct::Circumstances* here) const;
  bool read_versions(PyObject* crow, PyObject* col, direct::Circumstances* here) const;
  static bool read_variant(PyObject* variant, direct::Circumstances* here);
  // Of attention, as attention::dense_like says.
  pybind11::object new_result_of(const TensorView& operand) const;
  // The tensors that `launch` gives, a tuple: those of `results`, unless it hands over its own.
  template <size_t kCount, typename Launch>
  pybind11::object attended(const AttentionCall& call,
                            std::array<pybind11::object, kCount>& results,
                            direct::Circumstances* here, Launch&& launch) const;
  // Null where it has no memory.
  pybind11::object new_result(const MatmulCall& call, TensorView* written) const;

  // Memory of torch's allocator, in the order of torch's current stream, until `kept` ends, of the
  // kind of `like`; null where there is none. Called without the GIL.
  void* allocate(const TensorView& like, int64_t bytes, std::vector<pybind11::object>* kept) const;

  // See Circumstances::handles. Called without the GIL.
  std::array<void*, 3> new_handles(PyObject* crow, PyObject* col, PyObject* operand) const;

  // What `launch` returns, called without the GIL with scratch of the kind of `view`.
  template <typename Launch>
  bool launched(const TensorView& view, direct::Circumstances* here, Launch&& launch) const {
    std::vector<pybind11::object> kept;
    const auto scratch = [&](int64_t bytes) { return allocate(view, bytes, &kept); };
    here->scratch = std::cref(scratch);
    const NoGil no_gil;
    return launch();
  }

  const PythonTensors tensors_;
  const pybind11::function new_handles_, adopt_, is_grad_enabled_;
  const pybind11::tuple listeners_;
  const pybind11::module_ forward_ad_;
  const pybind11::str level_ = interned("_current_level");
};

// _tuner.Direct, and _tuner.DirectOperator, one of its functions as a callable (direct_call.cpp).
void bind_direct_calls(pybind11::module_& m);

}  // namespace sparse_autotune
