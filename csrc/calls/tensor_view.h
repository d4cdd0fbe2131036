// A strided tensor as operators, eager calls and compiled graphs all describe it.
#pragma once

#include <cstdint>
#include <optional>

#include "variant.h"

namespace sparse_autotune {

// The first four are numbered as DType.
enum class ElementType : uint8_t {
  kFloat16,
  kBFloat16,
  kFloat32,
  kFloat64,
  kInt32,
  kInt64,
  kOther
};

constexpr ElementType element_type(DType type) { return static_cast<ElementType>(type); }
constexpr ElementType element_type(IndexType type) {
  return type == IndexType::kInt64 ? ElementType::kInt64 : ElementType::kInt32;
}
inline std::optional<DType> value_type(ElementType type) {
  if (type > ElementType::kFloat64) return std::nullopt;
  return static_cast<DType>(type);
}
inline std::optional<IndexType> index_type(ElementType type) {
  if (type == ElementType::kInt32) return IndexType::kInt32;
  if (type == ElementType::kInt64) return IndexType::kInt64;
  return std::nullopt;
}
inline int64_t size_of(ElementType type) {
  if (const auto dtype = value_type(type)) return size_of(*dtype);
  return type == ElementType::kInt64 ? 8 : 4;
}

// TensorView::device where it is no CUDA ordinal.
constexpr int32_t kCpuDevice = -1, kOtherDevice = -2;

// Borrowed: valid while the tensor lives and keeps its shape.
struct TensorView {
  const void* data = nullptr;  // null: no memory, though it may have elements
  const int64_t* sizes = nullptr;
  const int64_t* strides = nullptr;  // elements
  int64_t dims = 0;
  ElementType type = ElementType::kOther;
  int32_t device = kOtherDevice;
  void* writable() const { return const_cast<void*>(data); }
};

inline int64_t elements_of(const TensorView& v) {
  int64_t count = 1;
  for (int64_t d = 0; d < v.dims; ++d) count *= v.sizes[d];
  return count;
}

inline bool has_memory(const TensorView& v) { return v.data != nullptr || elements_of(v) == 0; }

inline bool alike(const TensorView& a, const TensorView& b) {
  return a.device == b.device && a.type == b.type;
}

inline bool is_contiguous(const TensorView& v) {
  int64_t stride = 1;
  bool packed = true;
  for (int64_t d = v.dims - 1; d >= 0; --d) {
    if (v.sizes[d] == 0) return true;
    packed = packed && (v.sizes[d] == 1 || v.strides[d] == stride);
    stride *= v.sizes[d];
  }
  return packed;
}

// Elements from the first to the last in memory; 0 where there is none.
inline int64_t span_of(const TensorView& v) {
  int64_t last = 0;
  for (int64_t d = 0; d < v.dims; ++d) {
    if (v.sizes[d] == 0) return 0;
    last += (v.sizes[d] - 1) * v.strides[d];
  }
  return last + 1;
}

// Whether the address ranges meet: tensors interleaved in one buffer count as overlapping.
inline bool overlap(const TensorView& a, const TensorView& b) {
  const auto end = [](const TensorView& v) {
    return static_cast<const char*>(v.data) + span_of(v) * size_of(v.type);
  };
  return a.data < end(b) && b.data < end(a);
}

}  // namespace sparse_autotune
