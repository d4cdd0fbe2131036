// _tuner.Launcher: ops/launcher.h for Python's tensors. A hit spends most of its time on looking at
// them, so that is done here, in one call.
//
// It takes the products that nobody but autograd would notice, of plain tensors, where no gradient
// can be asked for. All others, and whatever is wrong, it leaves to the operator.
#include "bindings/launcher_binding.h"

#include <algorithm>
#include <array>
#include <optional>
#include <stdexcept>

#include "bindings/eager.h"
#include "bindings/python_calls.h"
#include "bindings/tensor_exchange.h"
#include "ops/dense_layout.h"
#include "ops/launcher.h"

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

DType dtype_of(ElementType type) {
  if (type == ElementType{exchange::kFloat, 16, 1}) return DType::kFloat16;
  if (type == ElementType{exchange::kBFloat, 16, 1}) return DType::kBFloat16;
  if (type == ElementType{exchange::kFloat, 32, 1}) return DType::kFloat32;
  if (type == ElementType{exchange::kFloat, 64, 1}) return DType::kFloat64;
  throw py::type_error("values must be float16, bfloat16, float32 or float64");
}

bool is_contiguous(const TensorView& v) {
  int64_t stride = 1;
  for (int32_t d = v.dims - 1; d >= 0; --d) {
    if (v.shape[d] == 0) return true;
    if (v.shape[d] > 1 && v.strides[d] != stride) return false;
    stride *= v.shape[d];
  }
  return true;
}

// The rules of `matrix_checks` that are about one matrix, but for its indices' content.
bool make_up_a_matrix(const TensorView& crow, const TensorView& col, const TensorView& values,
                      int64_t rows, int64_t cols) {
  const auto is_index = [&](const TensorView& v) {
    return v.type.code == exchange::kSigned && (v.type.bits == 32 || v.type.bits == 64) &&
           v.type.lanes == 1 && v.type == crow.type;
  };
  const auto is_here = [&](const TensorView& v) {
    return v.device == values.device && v.ordinal == values.ordinal && is_contiguous(v);
  };
  const int64_t block_m = values.shape[1], block_k = values.shape[2];
  return is_index(crow) && is_index(col) && is_here(crow) && is_here(col) && is_here(values) &&
         block_m > 0 && block_k > 0 && rows >= 0 && cols >= 0 && rows % block_m == 0 &&
         cols % block_k == 0 && crow.shape[0] == rows / block_m + 1 &&
         col.shape[0] == values.shape[0];
}

bool overlap(const TensorView& one, const TensorView& other) {
  const auto end = [](const TensorView& v) {
    return static_cast<const char*>(v.begin()) +
           span_of(v.shape, v.strides, v.dims) * (v.type.bits / 8);
  };
  return one.begin() < end(other) && other.begin() < end(one);
}

class TensorLauncher {
 public:
  TensorLauncher(const py::capsule& api, py::object eager, py::object crow_indices,
                 py::object col_indices, py::object values, int64_t rows, int64_t cols)
      : api_(*static_cast<const exchange::Api*>(api.get_pointer())),
        eager_(py::cast<const Eager&>(eager)),
        kept_{std::move(eager), crow_indices, col_indices, values},
        crow_(component(crow_indices, 1)),
        col_(component(col_indices, 1)),
        values_(component(values, 3)),
        rows_(rows),
        cols_(cols),
        version_(interned("_version")),
        new_empty_(interned("new_empty")) {
    const TensorView crow = component(crow_indices, 1), col = component(col_indices, 1),
                     v = component(values, 3);
    if (v.device != exchange::kCpuDevice && v.device != exchange::kCudaDevice) {
      throw py::value_error("another device than the library computes on");
    }
    if (!make_up_a_matrix(crow, col, v, rows, cols)) {
      throw py::value_error("the components do not make up a matrix");
    }
    type_ = v.type;
    device_ = v.device;
    ordinal_ = v.ordinal;
    PatternKey key{};
    key.crow_indices = crow.begin();
    key.col_indices = col.begin();
    key.nnzb = v.shape[0];
    key.block_rows = rows / v.shape[1];
    key.block_cols = cols / v.shape[2];
    key.ordinal = device_ == exchange::kCpuDevice ? -1 : ordinal_;
    key.index_type = crow.type.bits == 64 ? IndexType::kInt64 : IndexType::kInt32;
    launcher_.emplace(key, rows, cols, v.shape[1], v.shape[2], dtype_of(type_));
  }

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
    if (!view(a.crow_indices, &crow) || !view(a.col_indices, &col) || !view(a.values, &v) ||
        !crow_.is(crow) || !col_.is(col) || !values_.is(v)) {
      lost_ = true;
      return py::none();
    }
    Launcher::Call call{};
    call.transpose = a.transpose != a.sparse_right;
    if (!view(a.dense, &in)) return py::none();
    const py::object result = a.out.is_none() ? empty_result(a.dense, in, a.sparse_right, call)
                                              : py::reinterpret_borrow<py::object>(a.out);
    if (result.is_none() || !view(result, &out)) return py::none();
    if (overlap(out, crow) || overlap(out, col) || overlap(out, v) || overlap(out, in)) {
      return py::none();
    }
    if (!is_operand(v) || !set_dense(in, out, a.sparse_right, &call) ||
        !set_bias(a.bias, out, &call) || !read_version(a.crow_indices, &call.crow_version) ||
        !read_version(a.col_indices, &call.col_version)) {
      return py::none();
    }
    call.values = v.begin();
    call.activation = static_cast<Activation>(a.activation);
    call.frozen = a.frozen;
    call.allow_tf32 = a.allow_tf32;
    call.deterministic = a.deterministic;
    bool launched = false;
    {
      const py::gil_scoped_release no_gil;
      launched = launcher_->launch(call);
    }
    return launched ? result : py::none();
  }

  bool lost() const { return lost_; }

 private:
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

  // A new tensor like `dense` but for the side that the product changes; None for a batch of
  // matrices on the right.
  py::object empty_result(py::handle dense, const TensorView& in, bool sparse_right,
                          const Launcher::Call& call) const {
    constexpr int32_t kMaxDims = 16;
    if (in.dims < 1 || in.dims > kMaxDims || (!sparse_right && in.dims > 2)) return py::none();
    std::array<py::object, kMaxDims> sizes;
    std::array<PyObject*, kMaxDims + 1> arguments{dense.ptr()};
    const int32_t changed = sparse_right ? in.dims - 1 : 0;
    for (int32_t d = 0; d < in.dims; ++d) {
      sizes[d] = py::int_(d != changed ? in.shape[d] : call.transpose ? cols_ : rows_);
      arguments[d + 1] = sizes[d].ptr();
    }
    return checked(
        PyObject_VectorcallMethod(new_empty_.ptr(), arguments.data(), in.dims + 1, nullptr));
  }

  // What has no memory to look at (a sparse tensor) is nobody's mistake here.
  bool view(py::handle tensor, TensorView* out) const {
    if (api_.view(tensor.ptr(), out) == 0) return true;
    PyErr_Clear();
    return false;
  }

  TensorView component(py::handle tensor, int32_t dims) const {
    if (api_.version.major != exchange::kVersion) {
      throw std::runtime_error("DLPack's exchange API is of another version");
    }
    TensorView v;
    if (api_.view(tensor.ptr(), &v) != 0) throw py::error_already_set();
    if (v.dims != dims) throw py::value_error("a component has another number of dimensions");
    return v;
  }

  // torch's tensors of zeros that are not stored have no memory, and the dispatcher gives them
  // some. Views of memory that was given back lie at their offset, which the operator recognizes;
  // where programs are loaded begins at 4 MiB.
  bool is_operand(const TensorView& v) const {
    return v.type == type_ && v.device == device_ && v.ordinal == ordinal_ &&
           reinterpret_cast<uintptr_t>(v.data) >= (uintptr_t{4} << 20);
  }

  // The product's two dense matrices, as the operator reads `in` and the result: one of them on the
  // right of A, or on its left, with all leading dimensions one that is walked in steps.
  bool set_dense(const TensorView& in, const TensorView& out, bool sparse_right,
                 Launcher::Call* call) const {
    if (!is_operand(in) || !is_operand(out) || in.dims < 1 || in.dims != out.dims) return false;
    if (!sparse_right && in.dims > 2) return false;  // a batch
    const int32_t inner = sparse_right ? in.dims - 1 : 0;
    const int64_t m = call->transpose ? cols_ : rows_, k = call->transpose ? rows_ : cols_;
    if (in.shape[inner] != k || out.shape[inner] != m) return false;
    Step n{1, 0, 0};
    for (int32_t d = in.dims - 1; d >= 0; --d) {
      if (d == inner) continue;
      if (out.shape[d] != in.shape[d]) return false;
      if (!fold(n, {in.shape[d], in.strides[d], out.strides[d]})) return false;
    }
    call->b = in.begin();
    call->c = const_cast<void*>(out.begin());
    call->n = n.size;
    call->b_row_stride = in.strides[inner];
    call->b_col_stride = n.b;
    call->c_row_stride = out.strides[inner];
    call->c_col_stride = n.c;
    return true;
  }

  bool set_bias(py::handle bias, const TensorView& out, Launcher::Call* call) const {
    if (bias.is_none()) return true;
    TensorView v;
    if (!view(bias, &v) || !is_operand(v) || v.dims != 1) return false;
    if (v.shape[0] != (call->transpose ? cols_ : rows_)) return false;
    if ((v.strides[0] != 1 && v.shape[0] > 1) || overlap(out, v)) return false;
    call->bias = v.begin();
    return true;
  }

  bool read_version(py::handle tensor, int64_t* version) const {
    const auto number =
        py::reinterpret_steal<py::object>(PyObject_GetAttr(tensor.ptr(), version_.ptr()));
    *version = number ? PyLong_AsLongLong(number.ptr()) : -1;
    if (PyErr_Occurred() == nullptr) return true;
    PyErr_Clear();
    return false;
  }

  const exchange::Api& api_;  // torch's, which lives as long as the process
  const Eager& eager_;
  // `tensor.data = other` gives a tensor other memory, and no counter shows it. These aliases keep
  // the memory that is known here: while the caller's tensors lie at its addresses, it is theirs.
  const std::array<py::object, 4> kept_;
  const Place crow_, col_, values_;
  const int64_t rows_, cols_;
  const py::str version_, new_empty_;
  bool lost_ = false;
  ElementType type_{};
  int32_t device_ = 0, ordinal_ = 0;
  std::optional<Launcher> launcher_;
};

// A plain C method: pybind11's own would take as long as what it calls.
PyObject* product_method(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  if (count != 12) {
    PyErr_SetString(PyExc_TypeError, "product takes 12 arguments");
    return nullptr;
  }
  const long activation = PyLong_AsLong(args[8]);
  if (activation == -1 && PyErr_Occurred() != nullptr) return nullptr;
  try {
    auto& launcher = py::cast<TensorLauncher&>(py::handle(self));
    return launcher
        .product({args[0], args[1], args[2], args[3], args[4], args[5], args[6] == Py_True,
                  args[7] == Py_True, activation, args[9] == Py_True, args[10] == Py_True,
                  args[11] == Py_True})
        .release()
        .ptr();
  } catch (py::error_already_set& error) {
    error.restore();
    return nullptr;
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
    return nullptr;
  }
}

}  // namespace

void bind_launcher(py::module_& m) {
  py::class_<TensorLauncher> type(m, "Launcher");
  type.def(py::init<const py::capsule&, py::object, py::object, py::object, py::object, int64_t,
                    int64_t>(),
           py::arg("exchange_api"), py::arg("eager"), py::arg("crow_indices"),
           py::arg("col_indices"), py::arg("values"), py::arg("rows"), py::arg("cols"));
  type.def_property_readonly("lost", &TensorLauncher::lost);
  static PyMethodDef product = {
      "product", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&product_method)),
      METH_FASTCALL, nullptr};
  const auto method = py::reinterpret_steal<py::object>(
      PyDescr_NewMethod(reinterpret_cast<PyTypeObject*>(type.ptr()), &product));
  if (!method) throw py::error_already_set();
  type.attr("product") = method;
}

}  // namespace sparse_autotune
