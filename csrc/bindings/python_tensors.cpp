#include "bindings/python_tensors.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace py = pybind11;

namespace sparse_autotune {
namespace {

ElementType element_type(const exchange::ElementCode& code) {
  using namespace exchange;
  constexpr ElementCode kInOurOrder[] = {{kFloat, 16, 1}, {kBFloat, 16, 1}, {kFloat, 32, 1},
                                         {kFloat, 64, 1}, {kSigned, 32, 1}, {kSigned, 64, 1}};
  return static_cast<ElementType>(std::find(std::begin(kInOurOrder), std::end(kInOurOrder), code) -
                                  std::begin(kInOurOrder));
}

py::tuple to_tuple(const std::vector<int64_t>& numbers) {
  py::tuple tuple(numbers.size());
  for (size_t i = 0; i < numbers.size(); ++i) tuple[i] = py::int_(numbers[i]);
  return tuple;
}

}  // namespace

PythonTensors::PythonTensors(const py::dict& of_torch)
    : api_(*py::capsule(of_torch["exchange_api"]).get_pointer<const exchange::Api>()),
      tensor_(of_torch["tensor"]),
      parameter_(of_torch["parameter"]),
      empty_on_cpu_(of_torch["empty_on_cpu"]),
      empty_on_gpu_(of_torch["empty_on_gpu"]),
      dtypes_(of_torch["dtypes"]) {
  if (api_.version.major != exchange::kVersion) {
    throw std::runtime_error("DLPack's exchange API is of another version");
  }
}

bool PythonTensors::is_plain(py::handle tensor) const {
  const py::handle type = py::type::handle_of(tensor);
  return type.is(tensor_) || type.is(parameter_);
}

bool PythonTensors::read_version(py::handle tensor, int64_t* version) const {
  const auto number =
      py::reinterpret_steal<py::object>(PyObject_GetAttr(tensor.ptr(), version_.ptr()));
  *version = number ? PyLong_AsLongLong(number.ptr()) : -1;
  if (PyErr_Occurred() == nullptr) return true;
  PyErr_Clear();
  return false;
}

bool PythonTensors::view(py::handle tensor, TensorView* out) const {
  exchange::ForeignTensor v;
  if (!tensor || tensor.is_none() || api_.view(tensor.ptr(), &v) != 0 || !has_memory(tensor, v)) {
    PyErr_Clear();
    return false;
  }
  *out = {.data = v.begin(),
          .sizes = v.shape,
          .strides = v.strides,
          .dims = v.dims,
          .type = element_type(v.type),
          .device = v.device == exchange::kCpuDevice    ? kCpuDevice
                    : v.device == exchange::kCudaDevice ? v.ordinal
                                                        : kOtherDevice};
  return true;
}

// torch's tensors of zeros that are not stored have no memory, and the dispatcher gives them some.
// Views of memory that was given back begin at their offset.
bool PythonTensors::has_memory(py::handle tensor, const exchange::ForeignTensor& v) const {
  constexpr uintptr_t kBeyondOffsets = uintptr_t{1} << 40;
  const auto begin = reinterpret_cast<uintptr_t>(v.begin());
  if (begin >= kBeyondOffsets) return true;
  PyObject* const self = tensor.ptr();
  const auto offset = py::reinterpret_steal<py::object>(
      PyObject_VectorcallMethod(storage_offset_.ptr(), &self, 1, nullptr));
  return offset && begin != PyLong_AsSize_t(offset.ptr()) * (v.type.bits / 8);
}

py::object PythonTensors::new_empty(const TensorView& like,
                                    const std::vector<int64_t>& sizes) const {
  return new_empty(like, sizes, like.type);
}

py::object PythonTensors::new_empty(const TensorView& like, const std::vector<int64_t>& sizes,
                                    ElementType type) const {
  std::vector<int64_t> strides(sizes.size());
  int64_t stride = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    strides[d] = stride;
    stride *= std::max<int64_t>(sizes[d], 1);
  }
  return new_empty(like, sizes, strides, type);
}

py::object PythonTensors::new_empty(const TensorView& like, const std::vector<int64_t>& sizes,
                                    const std::vector<int64_t>& strides, ElementType type) const {
  Like& last = last_[std::min(sizes.size(), last_.size() - 1)];
  if (!last.shape || last.sizes != sizes || last.strides != strides) {
    last = {sizes, strides, to_tuple(sizes), to_tuple(strides)};
  }
  // Held here: an allocation may run other Python code, which makes other tensors.
  const py::object shape = last.shape, steps = last.steps;
  const py::object& empty = like.device == kCpuDevice ? empty_on_cpu_ : empty_on_gpu_;
  PyObject* arguments[] = {shape.ptr(), steps.ptr(),
                           PyTuple_GET_ITEM(dtypes_.ptr(), static_cast<Py_ssize_t>(type))};
  return checked(PyObject_Vectorcall(empty.ptr(), arguments, 3, nullptr));
}

}  // namespace sparse_autotune
