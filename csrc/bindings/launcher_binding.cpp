// _tuner.Launcher: ops/launcher.h for Python's tensors. A hit spends most of its time on looking at
// them, so that is done here, in one call.
//
// It takes the products that nobody but autograd would notice, of plain tensors, where no gradient
// can be asked for. All others, and whatever is wrong, it leaves to the operator.
#include "bindings/launcher_binding.h"

#include <algorithm>
#include <array>
#include <utility>

#include "bindings/eager.h"
#include "bindings/operands.h"
#include "bindings/python_calls.h"

namespace py = pybind11;

namespace sparse_autotune {
namespace {

using exchange::ElementType;
using exchange::TensorView;

// Where a component of the matrix lay when the launcher was made.
class Place {
 public:
  explicit Place(const TensorView& v) : begin_(v.begin()), dims_(v.dims), type_(v.type) {
    std::copy_n(v.shape, dims_, shape_.begin());
    std::copy_n(v.strides, dims_, strides_.begin());
  }
  bool is(const TensorView& v) const {
    return v.begin() == begin_ && v.dims == dims_ && v.type == type_ &&
           std::equal(v.shape, v.shape + dims_, shape_.begin()) &&
           std::equal(v.strides, v.strides + dims_, strides_.begin());
  }

 private:
  const void* begin_;
  int32_t dims_;
  ElementType type_;
  std::array<int64_t, 3> shape_{}, strides_{};
};

class TensorLauncher {
 public:
  TensorLauncher(py::object operands, py::object eager, py::object crow_indices,
                 py::object col_indices, py::object values, int64_t rows, int64_t cols)
      : operands_(py::cast<const Operands&>(operands)),
        eager_(py::cast<const Eager&>(eager)),
        kept_{std::move(operands), std::move(eager), crow_indices, col_indices, values},
        crow_(operands_.component(crow_indices, 1)),
        col_(operands_.component(col_indices, 1)),
        values_(operands_.component(values, 3)),
        matrix_(made_up(crow_indices, col_indices, values, rows, cols)),
        launcher_(matrix_.launcher()) {}

  // The arguments of the operator, as far as a call brings them; `bias` and `out` may be None.
  struct Arguments {
    py::handle crow_indices, col_indices, values, dense, bias, out;
    bool sparse_right, transpose;
    long activation;
    bool frozen, allow_tf32, deterministic;
  };

  // The operator's result; None: the operator's work.
  py::object product(const Arguments& a) {
    if (!is_for_us(a)) return py::none();
    TensorView crow, col, v, in, out;
    if (!find(a.crow_indices, crow_, &crow) || !find(a.col_indices, col_, &col) ||
        !find(a.values, values_, &v)) {
      return py::none();
    }
    Launcher::Call call{};
    call.transpose = a.transpose != a.sparse_right;
    if (!operands_.view(a.dense, &in)) return py::none();
    const int64_t size = call.transpose ? matrix_.cols : matrix_.rows;
    const py::object result = a.out.is_none()
                                  ? operands_.new_result(a.dense, in, a.sparse_right, size)
                                  : py::reinterpret_borrow<py::object>(a.out);
    if (result.is_none() || !operands_.view(result, &out)) return py::none();
    if (overlap(out, crow) || overlap(out, col) || overlap(out, v) || overlap(out, in)) {
      return py::none();
    }
    if (!matrix_.is_operand(v) || !matrix_.set_dense(in, out, a.sparse_right, &call) ||
        !operands_.read_versions(a.crow_indices, a.col_indices, &call)) {
      return py::none();
    }
    if (!a.bias.is_none()) {
      TensorView bias;
      if (!operands_.view(a.bias, &bias) || !matrix_.set_bias(bias, &call) || overlap(out, bias)) {
        return py::none();
      }
    }
    call.values = v.begin();
    call.activation = static_cast<Activation>(a.activation);
    call.frozen = a.frozen;
    call.allow_tf32 = a.allow_tf32;
    call.deterministic = a.deterministic;
    const auto launch = [&](Launcher::Scratch scratch) { return launcher_.launch(call, scratch); };
    return launched(operands_, a.dense, in, launch) ? result : py::none();
  }

  // The blocks of x * y that the pattern stores, summed over leading dimensions; of (x * y)^T, with
  // `transposed`. None: the operator's work.
  py::object sample(py::handle crow_indices, py::handle col_indices, py::handle x, py::handle y,
                    bool transposed, bool allow_tf32, bool deterministic) {
    if (!eager_.is_plain(x) || !eager_.is_plain(y) ||
        (eager_.is_grad_enabled() && (eager_.requires_grad(x) || eager_.requires_grad(y))) ||
        !eager_.nobody_listens()) {
      return py::none();
    }
    TensorView crow, col, left, right;
    if (!find(crow_indices, crow_, &crow) || !find(col_indices, col_, &col)) return py::none();
    Launcher::Call call{};
    Launcher::Sample sample{};
    if (!operands_.view(x, &left) || !operands_.view(y, &right) ||
        !matrix_.set_sample(left, right, transposed, &call, &sample) ||
        !operands_.read_versions(crow_indices, col_indices, &call)) {
      return py::none();
    }
    call.allow_tf32 = allow_tf32;
    call.deterministic = deterministic;
    const int64_t sizes[] = {matrix_.pattern.nnzb, matrix_.block_m, matrix_.block_k};
    const py::object result = operands_.new_empty(x, left, sizes, 3);
    TensorView blocks;
    if (!operands_.view(result, &blocks)) return py::none();
    sample.blocks = const_cast<void*>(blocks.begin());
    const auto launch = [&](Launcher::Scratch scratch) {
      return launcher_.launch_sample(call, sample, scratch);
    };
    return launched(operands_, x, left, launch) ? result : py::none();
  }

  bool lost() const { return lost_; }

 private:
  Matrix made_up(py::handle crow_indices, py::handle col_indices, py::handle values, int64_t rows,
                 int64_t cols) const {
    const auto matrix =
        Matrix::of(operands_.component(crow_indices, 1), operands_.component(col_indices, 1),
                   operands_.component(values, 3), rows, cols);
    if (!matrix) throw py::value_error("the components do not make up a matrix");
    return *matrix;
  }

  // A component, where it lies as it did; else the way is lost.
  bool find(py::handle component, const Place& known, TensorView* view) {
    const bool found = operands_.view(component, view) && known.is(*view);
    lost_ = lost_ || !found;
    return found;
  }

  bool is_for_us(const Arguments& a) const {
    const bool has_bias = !a.bias.is_none(), has_out = !a.out.is_none();
    if (!eager_.is_plain(a.dense) || (has_bias && !eager_.is_plain_parameter(a.bias)) ||
        (has_out && (!eager_.is_plain(a.out) || eager_.is_inference(a.out)))) {
      return false;
    }
    if (eager_.is_grad_enabled() &&
        (eager_.requires_grad(a.dense) || eager_.requires_grad(a.values) ||
         (has_bias && eager_.requires_grad(a.bias)) || (has_out && eager_.requires_grad(a.out)))) {
      return false;
    }
    return eager_.nobody_listens();
  }

  const Operands& operands_;
  const Eager& eager_;
  // `tensor.data = other` gives a tensor other memory, and no counter shows it. These aliases keep
  // the memory that is known here: while the caller's tensors lie at its addresses, it is theirs.
  const std::array<py::object, 5> kept_;
  const Place crow_, col_, values_;
  const Matrix matrix_;
  const Launcher launcher_;
  bool lost_ = false;
};

// A plain C method: pybind11's own would take as long as what it calls.
PyObject* product_method(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  if (count != 12) {
    PyErr_SetString(PyExc_TypeError, "product takes 12 arguments");
    return nullptr;
  }
  const long activation = PyLong_AsLong(args[8]);
  if (activation == -1 && PyErr_Occurred() != nullptr) return nullptr;
  return returned([&] {
    return py::cast<TensorLauncher&>(py::handle(self))
        .product({args[0], args[1], args[2], args[3], args[4], args[5], args[6] == Py_True,
                  args[7] == Py_True, activation, args[9] == Py_True, args[10] == Py_True,
                  args[11] == Py_True});
  });
}

PyObject* sample_method(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  if (count != 7) {
    PyErr_SetString(PyExc_TypeError, "sample takes 7 arguments");
    return nullptr;
  }
  return returned([&] {
    return py::cast<TensorLauncher&>(py::handle(self))
        .sample(args[0], args[1], args[2], args[3], args[4] == Py_True, args[5] == Py_True,
                args[6] == Py_True);
  });
}

void add_method(py::class_<TensorLauncher>& type, PyMethodDef& definition) {
  type.attr(definition.ml_name) =
      checked(PyDescr_NewMethod(reinterpret_cast<PyTypeObject*>(type.ptr()), &definition));
}

}  // namespace

void bind_launcher(py::module_& m) {
  py::class_<TensorLauncher> type(m, "Launcher");
  type.def(py::init<py::object, py::object, py::object, py::object, py::object, int64_t, int64_t>(),
           py::arg("operands"), py::arg("eager"), py::arg("crow_indices"), py::arg("col_indices"),
           py::arg("values"), py::arg("rows"), py::arg("cols"));
  type.def_property_readonly("lost", &TensorLauncher::lost);
  static PyMethodDef product = {
      "product", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&product_method)),
      METH_FASTCALL, nullptr};
  static PyMethodDef sample = {
      "sample", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&sample_method)),
      METH_FASTCALL, nullptr};
  add_method(type, product);
  add_method(type, sample);
}

}  // namespace sparse_autotune
