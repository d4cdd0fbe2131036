#include "bindings/operands.h"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <utility>

#include "bindings/python_calls.h"
#include "ops/dense_layout.h"

namespace py = pybind11;

namespace sparse_autotune {
namespace {

using exchange::ElementType;
using exchange::TensorView;

bool is_contiguous(const TensorView& v) {
  int64_t stride = 1;
  for (int32_t d = v.dims - 1; d >= 0; --d) {
    if (v.shape[d] == 0) return true;
    if (v.shape[d] > 1 && v.strides[d] != stride) return false;
    stride *= v.shape[d];
  }
  return true;
}

}  // namespace

std::optional<DType> dtype_of(ElementType type) {
  if (type == ElementType{exchange::kFloat, 16, 1}) return DType::kFloat16;
  if (type == ElementType{exchange::kBFloat, 16, 1}) return DType::kBFloat16;
  if (type == ElementType{exchange::kFloat, 32, 1}) return DType::kFloat32;
  if (type == ElementType{exchange::kFloat, 64, 1}) return DType::kFloat64;
  return std::nullopt;
}

bool overlap(const TensorView& one, const TensorView& other) {
  const auto end = [](const TensorView& v) {
    return static_cast<const char*>(v.begin()) +
           span_of(v.shape, v.strides, v.dims) * (v.type.bits / 8);
  };
  return one.begin() < end(other) && other.begin() < end(one);
}

std::optional<Matrix> Matrix::of(const TensorView& crow, const TensorView& col,
                                 const TensorView& values, int64_t rows, int64_t cols) {
  if (crow.dims != 1 || col.dims != 1 || values.dims != 3) return std::nullopt;
  const auto is_index = [&](const TensorView& v) {
    return v.type.code == exchange::kSigned && (v.type.bits == 32 || v.type.bits == 64) &&
           v.type.lanes == 1 && v.type == crow.type;
  };
  const auto is_here = [&](const TensorView& v) {
    return v.device == values.device && v.ordinal == values.ordinal && is_contiguous(v);
  };
  const std::optional<DType> dtype = dtype_of(values.type);
  const int64_t block_m = values.shape[1], block_k = values.shape[2];
  const bool fits =
      (values.device == exchange::kCpuDevice || values.device == exchange::kCudaDevice) && dtype &&
      is_index(crow) && is_index(col) && is_here(crow) && is_here(col) && is_here(values) &&
      block_m > 0 && block_k > 0 && rows >= 0 && cols >= 0 && rows % block_m == 0 &&
      cols % block_k == 0 && crow.shape[0] == rows / block_m + 1 && col.shape[0] == values.shape[0];
  if (!fits) return std::nullopt;
  PatternKey key{};
  key.crow_indices = crow.begin();
  key.col_indices = col.begin();
  key.nnzb = values.shape[0];
  key.block_rows = rows / block_m;
  key.block_cols = cols / block_k;
  key.ordinal = values.device == exchange::kCpuDevice ? -1 : values.ordinal;
  key.index_type = crow.type.bits == 64 ? IndexType::kInt64 : IndexType::kInt32;
  return Matrix{values.type, values.device, values.ordinal, rows, cols,
                block_m,     block_k,       *dtype,         key};
}

bool Matrix::is_operand(const TensorView& v) const {
  return v.type == type && v.device == device && v.ordinal == ordinal;
}

bool Matrix::set_dense(const TensorView& in, const TensorView& out, bool sparse_right,
                       Launcher::Call* call) const {
  if (!is_operand(in) || !is_operand(out) || in.dims < 1 || in.dims != out.dims) return false;
  if (!sparse_right && in.dims > 2) return false;  // a batch
  const int32_t inner = sparse_right ? in.dims - 1 : 0;
  const int64_t m = call->transpose ? cols : rows, k = call->transpose ? rows : cols;
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

bool Matrix::set_sample(const TensorView& x, const TensorView& y, bool transposed,
                        Launcher::Call* call, Launcher::Sample* sample) const {
  const int32_t dims = x.dims;
  if (!is_operand(x) || !is_operand(y) || dims < 2 || y.dims != dims) return false;
  const int64_t m = transposed ? cols : rows, k = transposed ? rows : cols;
  const int32_t last = dims - 1, inner = dims - 2;
  if (x.shape[inner] != m || y.shape[last] != k || x.shape[last] != y.shape[inner]) return false;
  Step n{x.shape[last], y.strides[inner], x.strides[last]};
  for (int32_t d = inner - 1; d >= 0; --d) {
    if (x.shape[d] != y.shape[d]) return false;
    if (!fold(n, {x.shape[d], y.strides[d], x.strides[d]})) return false;
  }
  call->n = n.size;
  *sample = {x.begin(), y.begin(), nullptr, x.strides[inner], n.c, n.b, y.strides[last]};
  if (transposed) {
    *sample = {y.begin(), x.begin(), nullptr, y.strides[last], n.b, n.c, x.strides[inner]};
  }
  return true;
}

bool Matrix::set_bias(const TensorView& v, Launcher::Call* call) const {
  if (!is_operand(v) || v.dims != 1 || v.shape[0] != (call->transpose ? cols : rows)) return false;
  if (v.strides[0] != 1 && v.shape[0] > 1) return false;
  call->bias = v.begin();
  return true;
}

Operands::Operands(const py::capsule& api, py::object empty_on_cpu, py::object empty_on_gpu)
    : api_(*static_cast<const exchange::Api*>(api.get_pointer())),
      empty_on_cpu_(std::move(empty_on_cpu)),
      empty_on_gpu_(std::move(empty_on_gpu)),
      version_(interned("_version")),
      new_empty_(interned("new_empty")),
      dtype_(interned("dtype")),
      storage_offset_(interned("storage_offset")) {
  if (api_.version.major != exchange::kVersion) {
    throw std::runtime_error("DLPack's exchange API is of another version");
  }
}

bool Operands::view(py::handle tensor, TensorView* out) const {
  if (api_.view(tensor.ptr(), out) == 0 && has_memory(tensor, *out)) return true;
  PyErr_Clear();
  return false;
}

// torch's tensors of zeros that are not stored have no memory, and the dispatcher gives them some.
// Views of memory that was given back begin at their offset, which the operator recognizes.
bool Operands::has_memory(py::handle tensor, const TensorView& v) const {
  constexpr uintptr_t kBeyondOffsets = uintptr_t{1} << 40;
  const auto begin = reinterpret_cast<uintptr_t>(v.begin());
  if (begin >= kBeyondOffsets) return true;
  PyObject* const self = tensor.ptr();
  const auto offset = py::reinterpret_steal<py::object>(
      PyObject_VectorcallMethod(storage_offset_.ptr(), &self, 1, nullptr));
  return offset && begin != PyLong_AsSize_t(offset.ptr()) * (v.type.bits / 8);
}

TensorView Operands::component(py::handle tensor, int32_t dims) const {
  TensorView v;
  if (api_.view(tensor.ptr(), &v) != 0) throw py::error_already_set();
  if (v.dims != dims) throw py::value_error("a component has another number of dimensions");
  return v;
}

bool Operands::read_versions(py::handle crow_indices, py::handle col_indices,
                             Launcher::Call* call) const {
  return read_version(crow_indices, &call->crow_version) &&
         read_version(col_indices, &call->col_version);
}

bool Operands::read_version(py::handle tensor, int64_t* version) const {
  const auto number =
      py::reinterpret_steal<py::object>(PyObject_GetAttr(tensor.ptr(), version_.ptr()));
  *version = number ? PyLong_AsLongLong(number.ptr()) : -1;
  if (PyErr_Occurred() == nullptr) return true;
  PyErr_Clear();
  return false;
}

py::object Operands::new_empty(py::handle like, const TensorView& view, const int64_t* sizes,
                               int32_t dims) const {
  py::tuple shape(dims), strides(dims);
  int64_t stride = 1;
  for (int32_t d = dims - 1; d >= 0; --d) {
    shape[d] = py::int_(sizes[d]);
    strides[d] = py::int_(stride);
    stride *= std::max<int64_t>(sizes[d], 1);
  }
  const py::object& empty = view.device == exchange::kCpuDevice ? empty_on_cpu_ : empty_on_gpu_;
  if (empty.is_none()) {
    PyObject* arguments[] = {like.ptr(), shape.ptr()};
    return checked(PyObject_VectorcallMethod(new_empty_.ptr(), arguments, 2, nullptr));
  }
  const py::object dtype = checked(PyObject_GetAttr(like.ptr(), dtype_.ptr()));
  PyObject* arguments[] = {shape.ptr(), strides.ptr(), dtype.ptr()};
  return checked(PyObject_Vectorcall(empty.ptr(), arguments, 3, nullptr));
}

py::object Operands::new_result(py::handle dense, const TensorView& in, bool sparse_right,
                                int64_t size) const {
  constexpr int32_t kMaxDims = 16;
  if (in.dims < 1 || in.dims > kMaxDims || (!sparse_right && in.dims > 2)) return py::none();
  std::array<int64_t, kMaxDims> sizes;
  std::copy_n(in.shape, in.dims, sizes.begin());
  sizes[sparse_right ? in.dims - 1 : 0] = size;
  return new_empty(dense, in, sizes.data(), in.dims);
}

void bind_operands(py::module_& m) {
  py::class_<Operands>(m, "Operands")
      .def(py::init<const py::capsule&, py::object, py::object>(), py::kw_only(),
           py::arg("exchange_api"), py::arg("empty_on_cpu"), py::arg("empty_on_gpu"));
}

void* TensorScratch::allocate(void* self, int64_t bytes) {
  auto& scratch = *static_cast<TensorScratch*>(self);
  const py::gil_scoped_acquire gil;
  try {
    const int64_t item = scratch.view_.type.bits / 8, elements = (bytes + item - 1) / item;
    const py::object memory =
        scratch.operands_.new_empty(scratch.like_, scratch.view_, &elements, 1);
    TensorView view;
    if (!scratch.operands_.view(memory, &view)) return nullptr;
    scratch.kept_.push_back(memory);
    return const_cast<void*>(view.begin());
  } catch (py::error_already_set&) {
    return nullptr;  // no memory: the operator says so
  }
}

}  // namespace sparse_autotune
