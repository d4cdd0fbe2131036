#include "bindings/direct_operator.h"

#include <array>
#include <exception>
#include <initializer_list>
#include <memory>
#include <optional>
#include <utility>

#include "bindings/eager.h"
#include "bindings/operands.h"
#include "bindings/python_calls.h"
#include "ops/dense_layout.h"
#include "ops/product_form.h"

namespace py = pybind11;

namespace sparse_autotune {
namespace {

using exchange::TensorView;

std::optional<int64_t> number(PyObject* object) {
  if (!PyLong_CheckExact(object)) return std::nullopt;  // a symbol, for instance
  const int64_t value = PyLong_AsLongLong(object);
  if (value != -1 || PyErr_Occurred() == nullptr) return value;
  PyErr_Clear();
  return std::nullopt;
}

// What both operators begin with: crow_indices, col_indices, values, rows, cols, dense.
struct Given {
  py::handle crow_indices, col_indices, values, dense;
  TensorView values_view, dense_view;
  Matrix matrix;
  Launcher::Call call{};
};

class DirectOperator {
 public:
  DirectOperator(py::object dispatched, py::object operands, py::object eager)
      : dispatched_(std::move(dispatched)),
        operands_(py::cast<const Operands&>(operands)),
        eager_(py::cast<const Eager&>(eager)),
        kept_{std::move(operands), std::move(eager)} {}
  virtual ~DirectOperator() = default;

  // The operator, for whom the dispatcher is.
  const py::object& dispatched() const { return dispatched_; }
  // Its result; null: its work.
  virtual py::object attempt(PyObject* const* arguments, Py_ssize_t count) const = 0;

 protected:
  bool is_for_us(std::initializer_list<py::handle> tensors) const {
    const bool grad_enabled = eager_.is_grad_enabled();
    for (const py::handle tensor : tensors) {
      if (tensor.is_none()) continue;
      if (!eager_.is_plain_parameter(tensor)) return false;
      if (grad_enabled && eager_.requires_grad(tensor)) return false;
    }
    return eager_.nobody_listens();
  }

  // Of the product that computes the result, or with `backwards` the dense operand's gradient.
  std::optional<Given> given(PyObject* const* a, PyObject* form, bool backwards) const {
    const auto rows = number(a[3]), cols = number(a[4]), switches = number(form);
    if (!rows || !cols || !switches) return std::nullopt;
    Given g{.crow_indices = a[0], .col_indices = a[1], .values = a[2], .dense = a[5]};
    TensorView crow, col;
    if (!operands_.view(g.crow_indices, &crow) || !operands_.view(g.col_indices, &col) ||
        !operands_.view(g.values, &g.values_view) || !operands_.view(g.dense, &g.dense_view)) {
      return std::nullopt;
    }
    const auto matrix = Matrix::of(crow, col, g.values_view, *rows, *cols);
    if (!matrix || !matrix->is_operand(g.values_view)) return std::nullopt;
    g.matrix = *matrix;
    const ProductForm f(*switches);
    g.call.values = g.values_view.begin();
    g.call.transpose = (f.transpose != backwards) != f.sparse_right;
    g.call.activation = static_cast<Activation>(f.activation);
    g.call.frozen = f.frozen;
    g.call.allow_tf32 = f.allow_tf32 && g.matrix.dtype == DType::kFloat32;
    g.call.deterministic = f.deterministic;
    if (f.activation < 0 || f.activation > static_cast<int64_t>(Activation::kSilu) ||
        !operands_.read_versions(g.crow_indices, g.col_indices, &g.call)) {
      return std::nullopt;
    }
    return g;
  }

  // The result of the product by `dense`, still to be computed; null where it does not fit.
  py::object place_result(py::handle dense, const TensorView& in, bool sparse_right,
                          Given* g) const {
    const int64_t size = g->call.transpose ? g->matrix.cols : g->matrix.rows;
    py::object result = operands_.new_result(dense, in, sparse_right, size);
    TensorView out;
    if (result.is_none() || !operands_.view(result, &out) ||
        !g->matrix.set_dense(in, out, sparse_right, &g->call)) {
      return {};
    }
    return result;
  }

  const Operands& operands() const { return operands_; }

 private:
  const py::object dispatched_;
  const Operands& operands_;
  const Eager& eager_;
  const std::array<py::object, 2> kept_;
};

class DirectProduct final : public DirectOperator {
 public:
  using DirectOperator::DirectOperator;

  py::object attempt(PyObject* const* a, Py_ssize_t count) const override {
    if (count != 9 || a[8] != Py_None) return {};  // a variant is asked for
    const bool has_bias = a[6] != Py_None;
    if (!is_for_us({a[0], a[1], a[2], a[5], a[6]})) return {};
    std::optional<Given> g = given(a, a[7], false);
    if (!g) return {};
    TensorView bias;
    if (has_bias && (!operands().view(a[6], &bias) || !g->matrix.set_bias(bias, &g->call))) {
      return {};
    }
    const bool sparse_right = ProductForm(*number(a[7])).sparse_right;
    py::object result = place_result(g->dense, g->dense_view, sparse_right, &*g);
    if (!result) return {};
    const auto launch = [&](Launcher::Scratch scratch) {
      return g->matrix.launcher().launch(g->call, scratch);
    };
    if (!launched(operands(), g->values, g->values_view, launch)) return {};
    return result;
  }
};

class DirectGradients final : public DirectOperator {
 public:
  using DirectOperator::DirectOperator;

  py::object attempt(PyObject* const* a, Py_ssize_t count) const override {
    if (count != 8 || !is_for_us({a[0], a[1], a[2], a[5], a[6]})) return {};
    std::optional<Given> g = given(a, a[7], true);
    if (!g) return {};
    g->call.activation = Activation::kNone;
    const ProductForm form(*number(a[7]));
    const py::handle grad = a[6];
    TensorView grad_view, blocks;
    if (!operands().view(grad, &grad_view) || !g->matrix.is_operand(g->dense_view)) return {};
    py::object grad_dense = place_result(grad, grad_view, form.sparse_right, &*g);
    if (!grad_dense) return {};
    Launcher::Sample sample{};
    if (!set_sample(g->dense_view, grad_view, form, g->call, &sample)) return {};
    py::object grad_values =
        operands().new_empty(g->values, g->values_view, g->values_view.shape, 3);
    if (!operands().view(grad_values, &blocks)) return {};
    sample.blocks = const_cast<void*>(blocks.begin());
    const auto launch = [&](Launcher::Scratch scratch) {
      return g->matrix.launcher().launch_both(g->call, sample, scratch);
    };
    if (!launched(operands(), g->values, g->values_view, launch)) return {};
    return py::make_tuple(std::move(grad_dense), std::move(grad_values));
  }

 private:
  // (rows of A) x n and n x (cols of A), whose product holds the gradient of A. The product by
  // `grad` fits, which says what there is to say of its own sizes.
  static bool set_sample(const TensorView& dense, const TensorView& grad, const ProductForm& form,
                         const Launcher::Call& call, Launcher::Sample* sample) {
    const int32_t dims = grad.dims, inner = form.sparse_right ? dims - 1 : 0;
    const bool grad_left = form.transpose == form.sparse_right;
    const TensorView &left = grad_left ? grad : dense, &right = grad_left ? dense : grad;
    if (dense.dims != dims) return false;
    Step n{1, 0, 0};
    for (int32_t d = dims - 1; d >= 0; --d) {
      if (d == inner) continue;
      if (dense.shape[d] != grad.shape[d]) return false;
      if (!fold(n, {grad.shape[d], right.strides[d], left.strides[d]})) return false;
    }
    sample->x = left.begin();
    sample->y = right.begin();
    sample->x_row_stride = left.strides[inner];
    sample->x_col_stride = n.c;
    sample->y_row_stride = n.b;
    sample->y_col_stride = right.strides[inner];
    return n.size == call.n;
  }
};

// A plain C type: pybind11's own calls would take as long as what they call.
struct Callable {
  PyObject_HEAD DirectOperator* direct;
};

PyObject* call(PyObject* self, PyObject* arguments, PyObject* keywords) {
  const DirectOperator& direct = *reinterpret_cast<Callable*>(self)->direct;
  return returned([&] {
    py::object result;
    if (keywords == nullptr || PyDict_GET_SIZE(keywords) == 0) {
      result = direct.attempt(&PyTuple_GET_ITEM(arguments, 0), PyTuple_GET_SIZE(arguments));
    }
    return result ? result : checked(PyObject_Call(direct.dispatched().ptr(), arguments, keywords));
  });
}

// The operator's: torch's own object for it is kept in tables by this.
Py_hash_t hash(PyObject* self) {
  return PyObject_Hash(reinterpret_cast<Callable*>(self)->direct->dispatched().ptr());
}

void deallocate(PyObject* self) {
  PyTypeObject* const type = Py_TYPE(self);
  delete reinterpret_cast<Callable*>(self)->direct;
  type->tp_free(self);
  Py_DECREF(type);
}

template <typename Direct>
PyObject* make(PyTypeObject* type, PyObject* arguments, PyObject*) {
  PyObject *dispatched = nullptr, *operands = nullptr, *eager = nullptr;
  if (!PyArg_ParseTuple(arguments, "OOO", &dispatched, &operands, &eager)) return nullptr;
  try {
    auto direct = std::make_unique<Direct>(py::reinterpret_borrow<py::object>(dispatched),
                                           py::reinterpret_borrow<py::object>(operands),
                                           py::reinterpret_borrow<py::object>(eager));
    PyObject* const self = type->tp_alloc(type, 0);
    if (self != nullptr) reinterpret_cast<Callable*>(self)->direct = direct.release();
    return self;
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_TypeError, error.what());
  }
  return nullptr;
}

template <typename Direct>
void bind(py::module_& m, const char* name, const char* full_name) {
  PyType_Slot slots[] = {{Py_tp_new, reinterpret_cast<void*>(&make<Direct>)},
                         {Py_tp_call, reinterpret_cast<void*>(&call)},
                         {Py_tp_hash, reinterpret_cast<void*>(&hash)},
                         {Py_tp_dealloc, reinterpret_cast<void*>(&deallocate)},
                         {0, nullptr}};
  PyType_Spec spec{full_name, sizeof(Callable), 0, Py_TPFLAGS_DEFAULT, slots};
  m.attr(name) = checked(PyType_FromSpec(&spec));
}

}  // namespace

void bind_direct_operators(py::module_& m) {
  bind<DirectProduct>(m, "DirectProduct", "sparse_autotune._tuner.DirectProduct");
  bind<DirectGradients>(m, "DirectGradients", "sparse_autotune._tuner.DirectGradients");
}

}  // namespace sparse_autotune
