// Where a Python tensor lies, without its framework's headers: through DLPack's C exchange API
// (https://dmlc.github.io/dlpack, version 1), of which this declares what is read here.
#pragma once

#include <cstdint>

namespace sparse_autotune::exchange {

enum DeviceCode : int32_t { kCpuDevice = 1, kCudaDevice = 2 };
enum TypeCode : uint8_t { kSigned = 0, kFloat = 2, kBFloat = 4 };

struct ElementCode {
  uint8_t code, bits;
  uint16_t lanes;
  bool operator==(const ElementCode&) const = default;
};

// Borrowed from the tensor: valid while it lives and keeps its shape.
struct ForeignTensor {
  void* data;
  int32_t device, ordinal;
  int32_t dims;
  ElementCode type;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;

  const void* begin() const { return static_cast<const char*>(data) + byte_offset; }
};

struct Api {
  struct {
    uint32_t major, minor;
  } version;
  Api* previous;
  void* allocate;
  void* take;
  void* give;
  int (*view)(void* tensor,
              ForeignTensor* out);  // no synchronisation; an exception is set unless 0
  void* stream;
};
inline constexpr uint32_t kVersion = 1;

}  // namespace sparse_autotune::exchange
